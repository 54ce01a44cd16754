//! The dashboard over plain HTTP, as a browser without scripts uses it: a cookie, and forms of its own pages.

use super::{AdminAnswer, AdminClient, TestGateway};

/// Someone who is logged in.
#[derive(Clone, Debug)]
pub struct Dashboard {
    pub client: AdminClient,
    pub cookie: String,
}

impl TestGateway {
    /// Logs in on the dashboard with the admin token.
    pub async fn dashboard(&self) -> Dashboard {
        let admin = self.admin().await;
        Dashboard::log_in(&admin, &admin.token).await
    }
}

impl Dashboard {
    pub async fn log_in(admin: &AdminClient, token: &str) -> Dashboard {
        let client = admin.with_token("");
        let answer = Dashboard::try_log_in(&client, token).await;
        assert_eq!((answer.status, answer.header("location")), (303, "/"), "{answer:?}");
        let cookie = answer.header("set-cookie").split(';').next().unwrap().to_owned();
        Dashboard { client, cookie }
    }

    pub async fn try_log_in(client: &AdminClient, token: &str) -> AdminAnswer {
        client.send("POST", "/login", &[FORM, OWN], &form(&[("token", token)])).await
    }

    /// The paths of the pages that each page links to.
    pub async fn pages(&self) -> Vec<String> {
        let page = self.get("/").await.text;
        let links = page.split("</nav>").next().unwrap().split(r#"<li><a href="."#).skip(1);
        let pages: Vec<_> = links.map(|link| link.split('"').next().unwrap().to_owned()).collect();
        assert!(pages.len() > 4, "{page}");
        pages
    }

    pub async fn get(&self, path: &str) -> AdminAnswer {
        self.client.send("GET", path, &[("cookie", &self.cookie)], "").await
    }

    /// Sends a form of one of the dashboard's own pages.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> AdminAnswer {
        self.client.send("POST", path, &[FORM, OWN, ("cookie", &self.cookie)], &form(fields)).await
    }
}

/// What a browser says of a form of the dashboard's own pages.
pub const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

//! `[origin]` with `kind = "http"`.

use super::*;

fn upstreams(rest: &str) -> Upstreams {
    match config(&format!("[origin]\nkind = \"http\"\n{rest}")).origin.kind {
        OriginKind::Http(upstreams) => *upstreams,
        OriginKind::Builtin => panic!("not http"),
    }
}

fn origin_faults(rest: &str) -> Vec<String> {
    faults(&format!("[origin]\nkind = \"http\"\n{rest}"))
}

#[test]
fn an_upstream_is_taken_apart() {
    let upstream = |url: &str, more: &str| {
        let upstream = upstreams(&format!("upstreams = [\"{url}\"]\n{more}")).list.remove(0);
        (upstream.to_string(), upstream.name, upstream.host, upstream.server_name)
    };
    let expect = |url: &str, name: &str, host: &str, server_name: Option<&str>| {
        (url.to_owned(), name.to_owned(), host.to_owned(), server_name.map(str::to_owned))
    };
    assert_eq!(upstream("http://10.0.0.7:3000", ""), expect("http://10.0.0.7:3000", "10.0.0.7", "10.0.0.7:3000", None));
    assert_eq!(upstream("http://svc/", ""), expect("http://svc:80", "svc", "svc", None));
    assert_eq!(upstream("http://[::1]/api/v1/", ""), expect("http://[::1]:80/api/v1", "::1", "[::1]", None));
    assert_eq!(
        upstream("http://[::1]:81", "host = \"g.example\"\n"),
        expect("http://[::1]:81", "::1", "g.example", None)
    );
    // The certificate is the upstream's own, or for `host` without its port, or for what `tls` says.
    assert_eq!(upstream("https://svc", ""), expect("https://svc:443", "svc", "svc", Some("svc")));
    assert_eq!(upstream("https://[::1]:81", ""), expect("https://[::1]:81", "::1", "[::1]:81", Some("::1")));
    let host = "host = \"g.example:8443\"\n";
    assert_eq!(upstream("https://svc", host), expect("https://svc:443", "svc", "g.example:8443", Some("g.example")));
    let both = format!("{host}tls.server_name = \"in.example\"\n");
    assert_eq!(upstream("https://svc", &both), expect("https://svc:443", "svc", "g.example:8443", Some("in.example")));
}

#[test]
fn each_of_several_keeps_its_own_path_and_scheme() {
    let list = upstreams("upstreams = [\"http://10.0.0.7:3000/a\", \"https://10.0.0.8/b/c\"]\n").list;
    let urls: Vec<_> = list.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://10.0.0.7:3000/a", "https://10.0.0.8:443/b/c"]);
    assert_eq!(list[0].address(), Some("10.0.0.7:3000".parse().unwrap()));
    assert_eq!(upstreams("upstreams = [\"http://svc\"]").list[0].address(), None);
}

#[test]
fn what_is_no_upstream_is_a_fault_that_shows_no_password() {
    let bad = ["http://", "http:///x", "http://h:", "http://h:99999", "http://h?x", "http://h/a b", "http://::1", "h"];
    for bad in bad.into_iter().chain(["https://", "https://me:hunter2@h", "https://a_-/", "ftp://h", "http://h:+1"]) {
        let faults = origin_faults(&format!("upstreams = [\"{bad}\"]\n"));
        assert_eq!(faults.len(), 1, "{bad}: {faults:?}");
        assert!(
            faults[0].starts_with("3:1") && faults[0].contains(": origin.upstreams") && !faults[0].contains("hunter2"),
            "{faults:?}"
        );
    }
}

#[test]
fn every_fault_of_the_upstreams_is_reported_with_its_place() {
    let text = "upstreams = [\"http://a\", \"http://a:80/\", \"https://b\"]\nfirst_byte_timeout = \"0s\"\n\
                health = { path = \"up\", interval = \"0s\", fall = 0, rise = 101 }\n\
                tls = { certificate = \"c.pem\", ca = \"\", server_name = \"a b\" }\n";
    let messages = origin_faults(text);
    let paths: Vec<_> = messages.iter().map(|fault| fault.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        paths,
        [
            "4:22 origin.first_byte_timeout",
            "5:19 origin.health.path",
            "5:36 origin.health.interval",
            "5:49 origin.health.fall",
            "5:59 origin.health.rise",
            "6:7 origin.tls",
            "6:37 origin.tls.ca",
            "6:55 origin.tls.server_name",
        ],
        "{messages:#?}"
    );
    let twice = origin_faults("upstreams = [\"http://a/x\", \"http://a/x\"]");
    assert_eq!(twice, ["3:28: origin.upstreams[1]: is listed twice"]);
    assert_eq!(origin_faults("upstreams = [\"https://b\"]\ntls = { private_key = \"k\" }").len(), 1);
    assert_eq!(origin_faults("upstreams = [\"https://b\"]\nhost = \"a..b\"").len(), 1);
    let itself = origin_faults("upstreams = [\"http://a\", \"http://127.0.0.1:8080/v1\"]");
    assert!(itself.len() == 1 && itself[0].contains("this server would ask itself"), "{itself:?}");
    let many: Vec<_> = (0..65).map(|i| format!("\"http://h{i}\"")).collect();
    assert_eq!(origin_faults(&format!("upstreams = [{}]", many.join(","))).len(), 1);
}

#[test]
fn health_and_tls_have_defaults_and_their_files_start_at_the_configs_folder() {
    let upstreams = upstreams(
        "upstreams = [\"https://a\"]\nhealth = { interval = \"1s\" }\n\
         tls = { ca = \"ca.pem\", certificate = \"/c.pem\", private_key = \"k.pem\" }\n",
    );
    let health = Health { path: "/".into(), interval: Duration::from_secs(1), fall: 3, rise: 2 };
    assert_eq!(upstreams.health, Some(health));
    let files: Vec<_> = upstreams.tls.files().collect();
    assert_eq!(files, ["/etc/gg/ca.pem", "/c.pem", "/etc/gg/k.pem"].map(Path::new));
}

#[test]
fn what_has_no_effect_on_upstreams_is_said() {
    let http = "[origin]\nkind = \"http\"\nupstreams = [\"http://a\"]\n";
    assert_eq!(warnings(&format!("{http}tls.ca = \"ca.pem\"\n")), ["origin.tls"]);
}

//! Opening a store: new, of an older schema, or of a newer one.

use super::*;
use crate::model::{Digest, Scope};

/// A file that the commands and the server of the version wrote whose schema was the first.
const FIRST_SCHEMA: &[u8] = include_bytes!("../../../tests/fixtures/store-v1.db");

/// What that file holds, as a database of PostgreSQL.
const FIRST_RECORDS: &str = "INSERT INTO guild (id, name, gone) VALUES ('555', 'Gone Fishing', true), \
        ('81384788765712384', 'Night Watch', false); \
    INSERT INTO member SELECT no, 190551803669118976, 'Ada', 1250 FROM guild WHERE NOT gone; \
    INSERT INTO member SELECT no, 8, '8', -3 FROM guild WHERE NOT gone; \
    INSERT INTO warn SELECT no, 190551803669118976, 1, 'Mod', 'spam', 4102444800 FROM guild WHERE NOT gone; \
    INSERT INTO review SELECT no, 190551803669118976, 1, 'Bo', 5, 'Quick and kind' FROM guild WHERE NOT gone; \
    INSERT INTO key (id, digest, guild, name, tier, scope, created, expires, last_used) \
        SELECT 'k_3p4g1ljt', '\\x9832673f484074c8ca5963f9739318e82bd56439bde7d06085ef336c9134b53a'::bytea, no, 'Ada''s bot', \
            'gold', 'read', 1795252529, 4102444800, NULL FROM guild WHERE NOT gone \
        UNION ALL SELECT 'k_e17ruxhl', '\\x31c75db0b26771e233c6d03df081763bbc31b3afeaee29b12033e13820efaf69'::bytea, no, \
            'website', NULL, 'write', 1795252529, NULL, 1795252529 FROM guild WHERE NOT gone; \
    UPDATE feed SET seq = 1; INSERT INTO change (seq, node, kind) VALUES (1, 5, 2)";

/// What an export of it says.
const FIRST_LINES: [&str; 6] = [
    r#"{"guild":"555","name":"Gone Fishing"}"#,
    r#"{"guild":"81384788765712384","name":"Night Watch"}"#,
    r#"{"guild":"81384788765712384","member":"8","name":"8","points":-3}"#,
    r#"{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}"#,
    r#"{"guild":"81384788765712384","member":"190551803669118976","warn":"1","author":"Mod","reason":"spam","expires":4102444800}"#,
    r#"{"guild":"81384788765712384","member":"190551803669118976","review":"1","author":"Bo","rating":5,"text":"Quick and kind"}"#,
];

/// An empty location, and for PostgreSQL a session that has it open as another node has.
async fn of_first_schema(kind: Kind) -> (StoreAt, TempDir, Option<tokio_postgres::Client>) {
    let folder = tempfile::tempdir().unwrap();
    match kind {
        Kind::Sqlite => {
            let path = folder.path().join("store.db");
            std::fs::write(&path, FIRST_SCHEMA).unwrap();
            (StoreAt::Sqlite(path), folder, None)
        }
        Kind::Postgres => {
            let url = Postgres::shared().database().await;
            let at = PostgresAt::parse(&url, Path::new("/")).unwrap();
            let mut config = at.server.clone();
            let (client, connection) =
                config.application_name("guildgate").connect(tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("CREATE SCHEMA guildgate; SET search_path = guildgate").await.unwrap();
            client.batch_execute(&migrations::statements(&migrations::POSTGRES[..1], 0)).await.unwrap();
            client.batch_execute(FIRST_RECORDS).await.unwrap();
            (StoreAt::Postgres(Box::new(at)), folder, Some(client))
        }
    }
}

pub(crate) async fn many_may_open_a_new_store_at_once(kind: Kind) {
    let test = TestStore::new(kind).await;
    let at = match &test.at {
        StoreAt::Sqlite(path) => StoreAt::Sqlite(path.with_file_name("new.db")),
        StoreAt::Postgres(_) => {
            test.raw("DROP SCHEMA guildgate CASCADE").await;
            test.at.clone()
        }
    };
    let open = |at: StoreAt| tokio::spawn(async move { Store::open(&at, IfMissing::Make).await });
    let mut made = 0;
    for opened in [0; 4].map(|_| open(at.clone())) {
        made += u32::from(opened.await.unwrap().unwrap().is_new());
    }
    assert_eq!(made, 1);
}

pub(crate) async fn a_newer_schema_is_refused_and_not_changed(kind: Kind) {
    let test = TestStore::new(kind).await;
    test.raw("INSERT INTO refinery_schema_history (version) SELECT max(version) + 1 FROM refinery_schema_history")
        .await;
    let at = test.at.clone();
    for answer in [Store::open(&at, IfMissing::Make).await.map(drop), Store::state(&at).await.map(drop)] {
        assert!(failed(answer).contains("newer Guildgate"));
    }
}

pub(crate) async fn a_store_of_the_first_schema_is_brought_up_to_date_once_no_other_process_has_it_open(kind: Kind) {
    let (at, _folder, session) = of_first_schema(kind).await;
    let open = match &at {
        StoreAt::Sqlite(path) => {
            let conn = rusqlite::Connection::open(path).unwrap();
            conn.query_row("SELECT count(*) FROM member", [], |_| Ok(())).unwrap();
            Some(conn)
        }
        StoreAt::Postgres(_) => None,
    };
    let why = failed(Store::open(&at, IfMissing::Make).await);
    assert!(why.contains("older Guildgate") && why.contains("stop"), "{why}");
    assert_eq!(Store::state(&at).await.unwrap(), StoreState::Older);
    drop((open, session));
    let end = Instant::now() + Duration::from_secs(30); // the server may take a while to see that the session has ended
    while let Err(error) = Store::open(&at, IfMissing::Make).await {
        assert!(Instant::now() < end, "{error}");
    }
    // Twice: what is up to date is left alone.
    for _ in 0..2 {
        assert_eq!(Store::state(&at).await.unwrap(), StoreState::Current);
        holds_the_first_records(&Store::open(&at, IfMissing::Make).await.unwrap()).await;
    }
    // And what the new schema brings can be written into it.
    let store = Store::open(&at, IfMissing::Make).await.unwrap();
    store.rotate_key("k_e17ruxhl", Digest::of(b"new"), Some(200), 100).await.unwrap();
    assert_eq!(store.add_daily(0, vec![("k_e17ruxhl".into(), 3)]).await.unwrap(), [("k_e17ruxhl".into(), 3)]);
    assert!(store.keys().await.unwrap()[1].previous.is_some());
}

async fn holds_the_first_records(store: &Arc<Store>) {
    let (here, departed) = (guild("81384788765712384"), guild("555"));
    let guilds = [
        GuildRecord { id: departed, name: "Gone Fishing".into(), departed: true },
        GuildRecord { id: here.clone(), name: "Night Watch".into(), departed: false },
    ];
    assert_eq!(store.guilds().await.unwrap(), guilds);
    let first = KeyRecord {
        id: "k_3p4g1ljt".into(),
        name: "Ada's bot".into(),
        guild: here,
        digest: "sha256:9832673f484074c8ca5963f9739318e82bd56439bde7d06085ef336c9134b53a".parse().unwrap(),
        tier: Some("gold".into()),
        scope: Scope::Read,
        created: 1_795_252_529,
        expires: Some(4_102_444_800),
        last_used: None,
        previous: None,
    };
    let second = KeyRecord {
        id: "k_e17ruxhl".into(),
        name: "website".into(),
        digest: "sha256:31c75db0b26771e233c6d03df081763bbc31b3afeaee29b12033e13820efaf69".parse().unwrap(),
        tier: None,
        scope: Scope::Write,
        expires: None,
        last_used: Some(1_795_252_529),
        ..first.clone()
    };
    assert_eq!(store.keys().await.unwrap(), [first, second]);
    assert_eq!(super::transfer::exported(store).await.lines().collect::<Vec<_>>(), FIRST_LINES);
    assert_eq!(store.daily(0).await.unwrap(), []);
}

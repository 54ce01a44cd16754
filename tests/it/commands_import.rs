//! Contract section 2: `import`, `export`, and JSON Lines.

use serde_json::Value;

use crate::support::*;

fn guild() -> String {
    format!(r#"{{"guild":"{GUILD}","name":"Night Watch"}}"#)
}

fn member(id: &str, points: &str) -> String {
    format!(r#"{{"guild":"{GUILD}","member":"{id}","name":"Ada","points":{points}}}"#)
}

fn export(world: &World) -> Vec<Value> {
    let out = world.path("out.jsonl");
    world.run(&["export", out.to_str().unwrap()]).done();
    let text = world.text("out.jsonl");
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

/// The four lines that the contract shows.
fn contract_lines() -> String {
    [
        r#"{"guild":"81384788765712384","name":"Night Watch"}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","name":"Ada","points":1250}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","warn":"17","author":"Mod","reason":"spam","expires":1790000000}"#,
        r#"{"guild":"81384788765712384","member":"190551803669118976","review":"9","author":"Bo","rating":5,"text":"Quick and kind"}"#,
    ]
    .join("\n")
}

#[test]
fn what_is_imported_is_exported_record_by_record() {
    let world = World::plain();
    world.import(&contract_lines()).done();
    let exported = export(&world);
    let imported: Vec<Value> = contract_lines().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(exported.len(), 4, "{exported:?}");
    for record in &imported {
        assert!(exported.contains(record), "{record} is not in {exported:?}");
    }
    // Imported into another store, the export gives the same export.
    let other = World::plain();
    let lines: String = exported.iter().map(|r| format!("{r}\n")).collect();
    other.import(&lines).done();
    assert_eq!(export(&other), exported);
}

#[test]
fn every_text_survives_the_round_trip() {
    let world = World::plain();
    let texts = ["plain", "quote \" and \\ backslash", "★ é 漢字 🎉", "{a=b, c}", "  spaces  ", "'"];
    let mut lines = guild() + "\n";
    for (i, text) in texts.iter().enumerate() {
        let text = Value::from(*text);
        lines += &format!(
            "{{\"guild\":\"{GUILD}\",\"member\":\"7\",\"review\":\"{}\",\"author\":{text},\"rating\":3,\"text\":{text}}}\n",
            i + 1
        );
    }
    world.import(&lines).done();
    let exported = export(&world);
    for text in texts {
        assert!(exported.iter().any(|r| r["text"] == text && r["author"] == text), "{text:?} in {exported:?}");
    }
}

#[test]
fn a_later_line_wins_and_an_import_replaces_what_exists() {
    let world = World::plain();
    let points = |id: &str| {
        let found: Vec<Value> = export(&world).into_iter().filter(|r| r["member"] == id).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]["points"].as_i64().unwrap()
    };
    world
        .import(&[guild(), member("7", "1"), member("8", "5"), member("7", "2"), member("007", "3")].join("\n"))
        .done();
    assert_eq!((points("7"), points("8")), (3, 5));
    world.import(&member("7", "-9223372036854775808")).done();
    assert_eq!((points("7"), points("8")), (i64::MIN, 5), "what a file does not name stays");
}

#[test]
fn a_bad_line_is_named_by_number_and_nothing_is_imported() {
    let bad = [
        "not json at all",
        "{\"guild\":",
        "[]",
        "{}",
        r#"{"guild":"","name":"N"}"#,
        r#"{"guild":"81384788765712384"}"#,
        r#"{"guild":"81384788765712384","name":"N","nmae":"N"}"#,
        r#"{"guild":"81384788765712384","member":"x","name":"Ada","points":1}"#,
        r#"{"guild":"81384788765712384","member":"-7","name":"Ada","points":1}"#,
        r#"{"guild":"81384788765712384","member":"7","name":"Ada","points":"many"}"#,
        r#"{"guild":"81384788765712384","member":"7","name":"Ada","points":1.5}"#,
        r#"{"guild":"81384788765712384","member":"7","name":"Ada","points":9223372036854775808}"#,
        r#"{"guild":"81384788765712384","member":"7","warn":"x","author":"M","reason":"r","expires":1}"#,
        r#"{"guild":"81384788765712384","member":"7","warn":"1","author":"M","reason":"r"}"#,
        r#"{"guild":"81384788765712384","member":"7","review":"1","author":"B","rating":6,"text":"t"}"#,
        r#"{"guild":"81384788765712384","member":"7","review":"1","author":"B","rating":0,"text":"t"}"#,
    ];
    for line in bad {
        let world = World::plain();
        let file = [&*guild(), &member("7", "1"), line, &member("8", "2")].join("\n");
        let ran = world.import(&file).failed(1);
        let after_line = ran.stderr.to_lowercase().split("line").skip(1).any(|rest| {
            rest.trim_start_matches([' ', ':'])
                .strip_prefix('3')
                .is_some_and(|r| !r.starts_with(|c: char| c.is_ascii_digit()))
        });
        assert!(after_line || ran.stderr.contains(":3"), "line 3 is not named for {line}: {}", ran.stderr);
        assert_eq!(export(&world), Vec::<Value>::new(), "{line}: all or nothing");
    }
}

#[test]
fn a_record_of_a_guild_that_is_not_there_is_refused() {
    let world = World::plain();
    world.import(&member("7", "1")).failed(1).names(&[GUILD]);
    assert!(export(&world).is_empty());
}

#[test]
fn partial_takes_the_good_lines_and_names_the_bad() {
    let world = World::plain();
    let file = [&*guild(), &member("7", "1"), "not json", &member("8", "2"), "{}"].join("\n");
    let path = world.write("mixed.jsonl", file);
    let ran = world.run(&["import", "--partial", path.to_str().unwrap()]);
    assert!(ran.stderr.contains('3') && ran.stderr.contains('5') && !ran.stderr.contains("panicked"), "{ran:?}");
    let members: Vec<Value> = export(&world).into_iter().filter(|r| !r["member"].is_null()).collect();
    assert_eq!(members.len(), 2, "{members:?}");
}

#[test]
fn a_line_of_ten_megabytes_is_refused_by_number() {
    let world = World::plain();
    let long = member("7", "1").replace("Ada", &"x".repeat(10_000_000));
    let ran = world.import(&[&*guild(), &long, &member("8", "2")].join("\n")).failed(1);
    assert!(ran.stderr.contains('2') && ran.stderr.len() < 10_000, "{}", &ran.stderr[..ran.stderr.len().min(2000)]);
    assert!(export(&world).is_empty());
    // So is a last line without an end.
    world.import(&format!("{}\n{}", guild(), "x".repeat(10_000_000))).failed(1);
}

#[test]
fn a_members_name_of_more_than_64_kib_is_refused_by_line_and_reason_and_nothing_of_it_is_stored() {
    const BOUND: usize = 64 * 1024;
    let lines =
        |name: &str| [guild(), member("7", "1"), member("8", "2").replace("Ada", name), member("9", "3")].join("\n");
    let fits = "é".repeat(BOUND / 2); // the bound is in bytes
    let too_long = lines(&format!("{fits}x"));
    let why = format!("line 3: a member's name is at most {BOUND} bytes long, and this one has {}", BOUND + 1);
    let world = World::plain();
    world.import(&too_long).failed(1).names(&[&why]);
    assert!(export(&world).is_empty(), "all or nothing");
    let path = world.write("long.jsonl", too_long);
    let ran = world.run(&["import", "--partial", path.to_str().unwrap()]).names(&[&why]);
    assert!(ran.stderr.len() < 1000, "{}", ran.stderr.len());
    let members = || export(&world).into_iter().filter(|r| !r["member"].is_null()).collect::<Vec<_>>();
    assert_eq!(members().iter().map(|r| r["member"].as_str().unwrap()).collect::<Vec<_>>(), ["7", "9"]);
    world.import(&lines(&fits)).done();
    assert_eq!(members()[1]["name"], fits);
}

#[test]
fn empty_lines_and_files_and_a_missing_last_newline_do_no_harm() {
    let world = World::plain();
    world.import("").done();
    world.import(&format!("{}\n{}", guild(), member("7", "1"))).done();
    world.import(&format!("{}\r\n{}\r\n", guild(), member("8", "1"))).done();
    assert_eq!(export(&world).len(), 3);
}

#[test]
fn a_command_whose_outcome_cannot_be_printed_says_what_it_did() {
    let world = World::plain();
    world.write("in.jsonl", contract_lines());
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    let to_full_stdout = ["sh", "-c", "exec \"$0\" \"$@\" > /dev/full"];
    for (args, done) in [
        (&["import", "in.jsonl"][..], "4 records imported, but this line could not be printed"),
        (&["export", "out.jsonl"], "4 records exported, but this line could not be printed"),
        (&["store", "backup", "b.db"], "bytes written to b.db, but this line could not be printed"),
    ] {
        let ran = world.run_by(&to_full_stdout, args).failed(1).names(&[done, "No space left on device"]);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
    assert_eq!(export(&world).len(), 4);
    assert_eq!(world.text("out.jsonl").lines().count(), 4);
    world.run(&["store", "verify", "b.db"]).done();
}

#[test]
fn a_missing_file_is_named() {
    let world = World::plain();
    world.run(&["import", "nowhere.jsonl"]).failed(1).names(&["nowhere.jsonl"]);
    world.run(&["guild", "add", GUILD, "--name", "Night Watch"]).done();
    world.run(&["export", "no/such/folder/out.jsonl"]).failed(1).names(&["out.jsonl"]);
}

#[test]
fn an_export_holds_no_keys() {
    let world = World::plain();
    world.import(&contract_lines()).done();
    let key = world.run(&["key", "create", "--guild", GUILD, "--name", "canary"]).done().stdout;
    export(&world);
    let text = world.text("out.jsonl");
    assert!(!text.contains("canary") && !text.contains(key.trim_end()) && !text.contains("sha256"), "{text}");
}

#[tokio::test]
async fn an_import_into_the_store_of_a_running_server_is_seen_whole_within_a_second() {
    let gate = TestGateway::builder().key("bot").points("1", 1).start().await;
    let mut connection = gate.connect().await;
    for member in 1..=50 {
        connection.ask(&gate.request("getPoints", "bot", &format!("memberID={member}"))).await;
    }
    let lines: String = (1..=2000).map(|m| member(&m.to_string(), &(m * 10).to_string()) + "\n").collect();
    gate.world().import(&lines).done();
    for member in [1, 25, 50, 2000] {
        let what = format!("member {member} as imported");
        let points = (member * 10).to_string();
        let member = member.to_string();
        eventually(SECOND_AND_SLACK, &what, || async { gate.get_points("bot", &member).await.body == points }).await;
    }
    gate.set_points("bot", "1", 5).await.is("Successfully set 'Ada' points to '5'");
    gate.get_points("bot", "1").await.is("5");
}

//! Tests that the schema itself refuses half of a rotation: a previous secret is stored together with its end or not at
//! all. What rotation does is tested for every store in `store/suite/key_life.rs`.

use super::*;
use crate::store::suite::key_life::with_key;

#[tokio::test]
async fn a_previous_secret_without_its_end_is_never_stored() {
    let test = with_key::<TestStore>().await;
    for half in ["previous = zeroblob(32)", "previous_until = 5", "previous = zeroblob(31), previous_until = 5"] {
        assert!(test.raw().execute_batch(&format!("UPDATE key SET {half}")).is_err(), "{half}");
    }
    test.raw().execute_batch("UPDATE key SET previous = zeroblob(32), previous_until = 5").unwrap();
}

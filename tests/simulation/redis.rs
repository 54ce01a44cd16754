//! A Redis with one key: the script in Lua 5.1, over a table in memory, with a clock that a test sets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Value};

/// The fields of the key.
pub type Fields = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct Data {
    now_us: u64,
    fields: Fields,
    expires_us: u64,
}

#[derive(Debug)]
pub struct Redis {
    lua: Lua,
    script: Function,
    data: Rc<RefCell<Data>>,
}

impl Redis {
    pub fn new(script: &str) -> Self {
        let lua = Lua::new();
        let data = Rc::new(RefCell::new(Data::default()));
        let of_call = data.clone();
        let call = lua.create_function(move |lua, words: MultiValue| of_call.borrow_mut().call(lua, words)).unwrap();
        let table = lua.create_table().unwrap();
        table.set("call", call.clone()).unwrap();
        table.set("pcall", call).unwrap();
        lua.globals().set("redis", table).unwrap();
        lua.globals().set("KEYS", vec!["guildgate:l:k1"]).unwrap();
        let script = lua.load(script).set_name("turn.lua").into_function().unwrap();
        Redis { lua, script, data }
    }

    /// Runs the script.
    pub fn eval(&self, now_us: u64, arguments: &[String]) -> Vec<i64> {
        {
            let mut data = self.data.borrow_mut();
            data.now_us = now_us;
            if data.expires_us <= now_us {
                data.fields.clear();
            }
        }
        self.lua.globals().set("ARGV", arguments.to_vec()).unwrap();
        let numbers: Vec<f64> = self.script.call(()).unwrap();
        // As Redis makes integers of Lua's numbers.
        numbers.into_iter().map(|number| number as i64).collect()
    }

    /// When the key is removed.
    pub fn expires_us(&self) -> u64 {
        self.data.borrow().expires_us
    }

    pub fn fields(&self) -> Fields {
        self.data.borrow().fields.clone()
    }

    pub fn set_fields(&self, fields: Fields) {
        self.data.borrow_mut().fields = fields;
    }
}

impl Data {
    fn call(&mut self, lua: &Lua, words: MultiValue) -> mlua::Result<Value> {
        let words: Vec<String> = words
            .into_iter()
            .map(|word| match word {
                Value::String(text) => text.to_str().unwrap().to_owned(),
                other => panic!("{other:?} is not a text: Redis would write the number as it likes"),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["TIME"] => {
                let time = [(self.now_us / 1_000_000).to_string(), (self.now_us % 1_000_000).to_string()];
                return lua.create_sequence_from(time).map(Value::Table);
            }
            ["HGETALL", _] => {
                let all = self.fields.iter().flat_map(|(field, value)| [field.clone(), value.clone()]);
                return lua.create_sequence_from(all).map(Value::Table);
            }
            ["HSET", _, field, value] => drop(self.fields.insert((*field).to_owned(), (*value).to_owned())),
            ["HDEL", _, field] => drop(self.fields.remove(*field)),
            ["DEL", _] => self.fields.clear(),
            ["PEXPIRE", _, ms] => self.expires_us = self.now_us + ms.parse::<u64>().unwrap() * 1000,
            other => panic!("the script calls {other:?}"),
        }
        Ok(Value::Nil)
    }
}

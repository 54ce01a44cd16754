//! Reads the two parameters from a form body and checks them in the contract's order (08, 04, 05 for `memberID`, then
//! 08, 06, 07 for `amount`). Decoding is the WHATWG URL standard's and is done once. A parameter that is given twice is
//! refused, and not resolved to either of its values. `fuzz` compares it with a second reading of the rules.

use std::borrow::Cow;

use memchr::memchr2;

use super::{Fault, Operation, Param, Request};
use crate::model::MemberId;

/// The two parameters of a body, decoded once. Only [`Form::request`] checks them, so that the contract's order is in one
/// place.
#[derive(Debug, Default)]
pub struct Form<'b> {
    member: Value<'b>,
    amount: Value<'b>,
}

#[derive(Debug, Default)]
enum Value<'b> {
    #[default]
    Missing,
    Once(Cow<'b, str>),
    Repeated,
}

impl<'b> Value<'b> {
    fn add(&mut self, value: Cow<'b, str>) {
        *self = match self {
            Value::Missing => Value::Once(value),
            Value::Once(_) | Value::Repeated => Value::Repeated,
        }
    }

    /// The value; 08 if it is given twice, `missing` if it is not given or empty.
    fn get(&self, param: Param, missing: Fault) -> Result<&str, Fault> {
        match self {
            Value::Repeated => Err(Fault::Repeated(param)),
            Value::Once(value) if !value.is_empty() => Ok(value),
            Value::Once(_) | Value::Missing => Err(missing),
        }
    }
}

impl<'b> Form<'b> {
    /// Reads a body. The WHATWG parser accepts every sequence of bytes.
    pub fn read(body: &'b [u8]) -> Self {
        let mut form = Form::default();
        let mut add = |name: &str, value| match name {
            "memberID" => form.member.add(value),
            "amount" => form.amount.add(value),
            _ => {}
        };
        match std::str::from_utf8(body) {
            // Nothing to decode: two fifths of the instructions.
            Ok(text) if memchr2(b'%', b'+', body).is_none() => {
                for (name, value) in text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
                    add(name, value.into());
                }
            }
            _ => form_urlencoded::parse(body).for_each(|(name, value)| add(&name, value)),
        }
        form
    }

    /// The request for `operation`: memberID (08, 04, 05), then amount (08, 06, 07).
    pub fn request(&self, operation: Operation) -> Result<Request, Fault> {
        let member = self.member.get(Param::MemberId, Fault::MemberMissing)?;
        let member: MemberId = member.parse().map_err(|_| Fault::MemberNotInteger)?;
        let mut request = Request::read(operation, member);
        if operation.row().params.contains(&Param::Amount) {
            let amount = self.amount.get(Param::Amount, Fault::AmountMissing)?;
            request.amount = Some(signed(amount).ok_or(Fault::AmountNotInteger)?);
        }
        Ok(request)
    }
}

/// `-?` and ASCII digits within a signed 64-bit value. Rust's parser accepts a `+` too.
fn signed(text: &str) -> Option<i64> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

const FORM_TYPE: &[u8] = b"application/x-www-form-urlencoded";

/// Whether a `Content-Type` names the form type; its case and parameters are ignored.
pub fn is_form_type(content_type: &[u8]) -> bool {
    let essence = || content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    content_type == FORM_TYPE || essence().eq_ignore_ascii_case(FORM_TYPE)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn get(body: &str) -> Result<u64, Fault> {
        Form::read(body.as_bytes()).request(Operation::GetPoints).map(|request| request.member.get())
    }

    fn set(body: &str) -> Result<(u64, i64), Fault> {
        let request = Form::read(body.as_bytes()).request(Operation::SetPoints)?;
        Ok((request.member.get(), request.amount.unwrap()))
    }

    #[test]
    fn leading_zeros_and_encoded_digits_name_the_same_member() {
        for body in ["memberID=7", "memberID=007", "memberID=%37", "member%49D=7", "x=1&memberID=7&y", "&&memberID=7&"]
        {
            assert_eq!(get(body), Ok(7), "{body}");
        }
    }

    #[test]
    fn each_bad_member_is_refused_with_its_own_code() {
        for body in ["", "memberID", "memberID=", "memberid=7&amount=1", "memberID%3D7", "=7", "&&"] {
            assert_eq!(get(body), Err(Fault::MemberMissing), "{body}");
        }
        for body in [
            "x",
            "+7",
            "-7",
            "7 ",
            "7+",
            "%207",
            "7.0",
            "0x7",
            "1e3",
            "%D9%A7",
            "9223372036854775808",
            "99999999999999999999",
            "%FF",
            "7%00",
        ] {
            assert_eq!(get(&format!("memberID={body}")), Err(Fault::MemberNotInteger), "{body}");
        }
        assert_eq!(get("memberID=9223372036854775807"), Ok(i64::MAX as u64));
        for body in
            ["memberID=7&memberID=7", "memberID=&memberID=7", "memberID=7&member%49D=8", "memberID&x=1&memberID"]
        {
            assert_eq!(get(body), Err(Fault::Repeated(Param::MemberId)), "{body}");
        }
    }

    #[test]
    fn each_bad_amount_is_refused_after_the_member() {
        assert_eq!(set("memberID=7&amount=-5"), Ok((7, -5)));
        assert_eq!(set("memberID=7&amount=-9223372036854775808"), Ok((7, i64::MIN)));
        assert_eq!(set("memberID=7&amount=9223372036854775807"), Ok((7, i64::MAX)));
        for (amount, read) in [("-0", 0), ("0005", 5), ("-0005", -5), ("%2d5", -5)] {
            assert_eq!(set(&format!("memberID=7&amount={amount}")), Ok((7, read)), "{amount}");
        }
        for body in ["amount=5", "amount=x", "amount=1&amount=2"] {
            assert_eq!(set(body), Err(Fault::MemberMissing), "{body}");
        }
        for body in ["memberID=x", "memberID=x&amount=x", "memberID=x&amount=1&amount=2"] {
            assert_eq!(set(body), Err(Fault::MemberNotInteger), "{body}");
        }
        assert_eq!(set("memberID=x&memberID=&amount=x"), Err(Fault::Repeated(Param::MemberId)));
        for body in ["memberID=7", "memberID=7&amount", "memberID=7&amount=", "memberID=7&Amount=5"] {
            assert_eq!(set(body), Err(Fault::AmountMissing), "{body}");
        }
        for body in ["memberID=7&amount=1&amount=1", "amount=&memberID=7&amount=5", "memberID=7&amount=x&amount="] {
            assert_eq!(set(body), Err(Fault::Repeated(Param::Amount)), "{body}");
        }
        for amount in [
            "x",
            "5.0",
            "%2B5",
            "+5",
            "-",
            "--5",
            "5-",
            "1e3",
            "0x5",
            "%D9%A7",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            assert_eq!(set(&format!("memberID=7&amount={amount}")), Err(Fault::AmountNotInteger), "{amount}");
        }
    }

    #[test]
    fn an_unknown_parameter_may_come_twice() {
        assert_eq!(get("memberID=7&amount=1&amount=2&x&x"), Ok(7));
    }

    #[test]
    fn the_content_type_is_compared_without_case_or_parameters() {
        assert!(is_form_type(b"application/x-www-form-urlencoded"));
        assert!(is_form_type(b"Application/X-WWW-Form-URLencoded ; charset=utf-8"));
        assert!(!is_form_type(b"application/json"));
        assert!(!is_form_type(b"application/x-www-form-urlencodedx"));
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            for operation in Operation::ALL {
                let _ = Form::read(&body).request(operation);
            }
        }

        #[test]
        fn what_the_gateway_takes_for_equal_the_origin_takes_for_equal(
            member in 0..=i64::MAX as u64, zeros in 0usize..5, amount: i64, noise in "[a-z]{0,4}",
        ) {
            // However it was written, one canonical body is sent, and reading that gives the same request.
            let written = format!("{noise}=1&memberID={}{member}&amount={amount}", "0".repeat(zeros));
            let request = Form::read(written.as_bytes()).request(Operation::SetPoints);
            let sent = request.unwrap().canonical_body();
            prop_assert_eq!(&sent, &format!("memberID={member}&amount={amount}"));
            prop_assert_eq!(Form::read(sent.as_bytes()).request(Operation::SetPoints), request);
        }
    }
}

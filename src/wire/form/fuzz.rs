//! Compares the form's parser with a second implementation of the WHATWG URL standard's steps and the contract's
//! "Parameters".

use super::*;

fuzz_target!(form, 20_000, check);

fn check(body: &[u8]) {
    let form = Form::read(body);
    let given = model(body);
    for operation in Operation::ALL {
        let request = form.request(operation);
        assert_eq!(request, expected(&given, operation));
        if let Ok(request) = request {
            // An origin that parses what is sent finds the same request.
            let sent = request.canonical_body();
            assert_eq!(Form::read(sent.as_bytes()).request(operation), Ok(request), "sent as {sent}");
        }
    }
}

/// The form's pairs: split at `&`, at the first `=`, `+` for a space, percent-decoded, as UTF-8.
fn model(body: &[u8]) -> Vec<(String, String)> {
    let pieces = body.split(|b| *b == b'&').filter(|piece| !piece.is_empty());
    let pairs = pieces.map(|piece| {
        let equals = piece.iter().position(|b| *b == b'=');
        let (name, value) = equals.map_or((piece, &[][..]), |at| (&piece[..at], &piece[at + 1..]));
        (decoded(name), decoded(value))
    });
    pairs.collect()
}

fn decoded(text: &[u8]) -> String {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let hex = |at: usize| text.get(at).and_then(|b| char::from(*b).to_digit(16));
        match (text[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (other, ..) => out.push(other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Repeated is checked before missing, missing before wrong, and the member before the amount.
fn expected(given: &[(String, String)], operation: Operation) -> Result<Request, Fault> {
    let value = |param: Param| {
        let values: Vec<&str> =
            given.iter().filter(|(name, _)| name == param.name()).map(|(_, v)| v.as_str()).collect();
        if values.len() > 1 { Err(Fault::Repeated(param)) } else { Ok(values.concat()) }
    };
    let member = value(Param::MemberId)?;
    if member.is_empty() {
        return Err(Fault::MemberMissing);
    }
    let member = number(&member).filter(|n| *n <= i128::from(i64::MAX)).ok_or(Fault::MemberNotInteger)?;
    let member = MemberId::new(member as u64).unwrap();
    if !operation.row().params.contains(&Param::Amount) {
        return Ok(Request { operation, member, amount: None });
    }
    let amount = value(Param::Amount)?;
    if amount.is_empty() {
        return Err(Fault::AmountMissing);
    }
    let (sign, digits) = amount.strip_prefix('-').map_or((1, amount.as_str()), |digits| (-1, digits));
    let amount = number(digits).and_then(|n| i64::try_from(sign * n).ok()).ok_or(Fault::AmountNotInteger)?;
    Ok(Request { operation, member, amount: Some(amount) })
}

/// ASCII digits as a number; one that does not fit becomes the largest.
fn number(digits: &str) -> Option<i128> {
    let digit = |c: char| c.is_ascii_digit().then(|| i128::from(c as u32 - '0' as u32));
    let all: Option<Vec<i128>> = digits.chars().map(digit).collect();
    let all = all.filter(|all| !all.is_empty())?;
    Some(all.into_iter().fold(0, |n: i128, d| n.saturating_mul(10).saturating_add(d)))
}

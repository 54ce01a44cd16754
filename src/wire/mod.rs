//! The protocol between callers, the gateway and origins (contract section 1): operations, parameters, refusals and the
//! text of answers. Pure: no socket, no clock, no state.

mod chunked;
mod fault;
mod form;
mod framing;
mod map;
mod operation;
mod operation_path;
mod origin_answer;
mod request_id;
mod request_span;
mod trace_context;

pub use chunked::Chunked;
pub use fault::{Fault, MAX_CODE, Wording, code_meaning};
pub use form::{Form, is_form_type};
pub use framing::Framing;
pub use map::{first_expiry, set_points_line};
pub use operation::{Answer, Kind, Operation, Param, Request, Source};
pub use operation_path::{lies_under, may_be_operation};
pub use origin_answer::{MAX_ORIGIN_ANSWER, TOO_LONG, parse_origin_answer};
pub use request_id::RequestId;
pub use request_span::{OriginSpan, RequestSpan};
pub use trace_context::{TraceContext, TraceParent};

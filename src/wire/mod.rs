//! What is said on the network (contract section 1), pure: no socket, no clock, no state.

mod fault;
mod form;
mod map;
mod operation;
mod request_id;
mod usable;

pub use fault::{Fault, Wording};
pub use form::{Form, is_form_type};
pub use map::{first_expiry, reviews, set_points_line, warns};
pub use operation::{Operation, Param, Read, Request};
pub use request_id::RequestId;
pub use usable::{MAX_ORIGIN_ANSWER, Unusable, usable};

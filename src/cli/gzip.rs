//! Decompresses a gzip file: all its members, without the zero bytes that may pad its end, as gzip itself does it. Used by
//! `import` and `why`.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

/// The content of all members, one after another.
#[derive(Debug)]
pub(super) struct GzipMembers<R> {
    /// `None`: the file has ended.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(file: R) -> Self {
        GzipMembers { member: Some(GzDecoder::new(file)) }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            skip_padding(member.get_mut())?;
            let has_ended = member.get_mut().fill_buf()?.is_empty();
            self.member = self.member.take().filter(|_| !has_ended).map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

fn skip_padding(file: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = file.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        if zeros == 0 {
            return Ok(());
        }
        file.consume(zeros);
    }
}

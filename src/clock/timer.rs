//! A timer for work that is repeated in the background. All of these timers expire at the same moments, so that they
//! wake the process once for all of them. The kernel keeps them: a timer of Tokio wakes its thread up to once more for
//! each level of Tokio's wheel that it passes.

use std::io::{self, ErrorKind};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe;

use super::nanos;

/// Expires at multiples of a period on the machine's monotonic clock.
#[derive(Debug)]
pub struct AlignedTimer {
    /// A timerfd, which Tokio can read as it reads a pipe. `None`: the kernel gives none, so that Tokio's timers are used.
    timer: Option<pipe::Receiver>,
}

impl AlignedTimer {
    /// To be called and used in one runtime.
    pub fn new() -> Self {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC);
        let timer = timer.ok().and_then(|timer| pipe::Receiver::from_owned_fd_unchecked(timer).ok());
        AlignedTimer { timer }
    }

    /// Waits until the next multiple of `period`, which is at most `period` from now.
    pub async fn next_multiple_of(&self, period: Duration) {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or_default());
        let period = nanos(period).max(1);
        let wait = Duration::from_nanos(period - nanos(now) % period);
        if let Some(timer) = &self.timer
            && wait_until(timer, now + wait).await.is_ok()
        {
            return;
        }
        tokio::time::sleep(wait).await;
    }
}

impl Default for AlignedTimer {
    fn default() -> Self {
        AlignedTimer::new()
    }
}

async fn wait_until(timer: &pipe::Receiver, at: Duration) -> io::Result<()> {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at = Timespec { tv_sec: at.as_secs().cast_signed(), tv_nsec: at.subsec_nanos().into() };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value: at })?;
    loop {
        timer.readable().await?;
        match timer.try_read(&mut [0; 8]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(20);

    /// How many multiples have passed.
    fn multiples() -> i64 {
        let now = clock_gettime(ClockId::Monotonic);
        (now.tv_sec * 1000 + now.tv_nsec / 1_000_000) / 20
    }

    #[tokio::test]
    async fn a_timer_expires_at_a_multiple_of_its_period_whether_or_not_the_kernel_keeps_it() {
        for timer in [AlignedTimer::new(), AlignedTimer { timer: None }] {
            for _ in 0..5 {
                let before = multiples();
                timer.next_multiple_of(PERIOD).await;
                assert!(multiples() > before);
            }
        }
    }
}

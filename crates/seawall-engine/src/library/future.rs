//! A running call, as a future that needs no allocation on its way to success: only a call that waits or fails is boxed.

use super::attempt::Attempt;
use super::failure::Failure;
use super::fast_path::{self, Light};
use super::library_driver::{Asking, Driver, DriverStep};
use super::outcome::Judge;
use super::policy::Policy;
use super::request::Terms;
use crate::clock::Clock;
use pin_project_lite::pin_project;
use seawall_core::call::{CallEnd, Outcome};
use seawall_core::time::Mono;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Makes single attempts: a closure, or a service that gets the same request again. `J` classifies results, and reads the terms of
/// requests.
pub trait AttemptSender<J> {
    /// The value of a successful attempt.
    type Value;
    /// The error of a failed attempt.
    type Error;
    /// The future of one attempt.
    type Future: Future<Output = Result<Self::Value, Self::Error>>;

    /// Returns the call's terms for the policy.
    fn terms(&mut self) -> Terms;

    /// Returns whether these terms are the default, up to the call's first result.
    fn is_plain(&self) -> bool;

    /// Starts an attempt.
    fn send(&mut self, attempt: Attempt) -> Self::Future;
}

/// A closure and its terms, if it has any.
#[derive(Debug)]
pub(super) struct Closure<F> {
    pub(super) send: F,
    pub(super) terms: Option<Box<Terms>>,
}

impl<F, Fut, T, E, J> AttemptSender<J> for Closure<F>
where
    F: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Value = T;
    type Error = E;
    type Future = Fut;

    fn terms(&mut self) -> Terms {
        self.terms.take().map_or_else(Terms::default, |terms| *terms)
    }

    #[inline]
    fn is_plain(&self) -> bool {
        self.terms.is_none()
    }

    #[inline]
    fn send(&mut self, attempt: Attempt) -> Fut {
        (self.send)(attempt)
    }
}

type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// A running call. It ends with the value, or with a [`Failure`].
    pub struct Calling<S: AttemptSender<J>, J> {
        policy: Policy,
        sender: S,
        judge: J,
        course: Course,
        // The attempt in flight.
        #[pin]
        sending: Option<S::Future>,
        // Its timer, if it does not complete at once.
        timer: Option<Timer>,
        // Boxed, since most calls have none; and not in `course`, which would have to be dropped at each turn.
        full: Option<Box<Full>>,
        last: Option<Result<S::Value, S::Error>>,
    }

    impl<S: AttemptSender<J>, J> PinnedDrop for Calling<S, J> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Course::Light(light) = *this.course {
                abandon(light, this.policy, this.sender);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Course {
    Begins,
    /// The first attempt is in flight, and there is no machine.
    Light(Light),
    /// There is a machine.
    Full,
    Over,
}

/// The machine, and its current step.
struct Full {
    driver: Driver,
    stage: Stage,
}

enum Stage {
    Sending { until: Mono },
    Waiting { timer: Timer },
    Queued { timer: Timer },
    Asking { answer: Asking },
}

impl<S: AttemptSender<J>, J> Calling<S, J> {
    #[inline]
    pub(super) const fn new(policy: Policy, judge: J, sender: S) -> Self {
        Self { policy, sender, judge, course: Course::Begins, sending: None, timer: None, full: None, last: None }
    }
}

impl<S: AttemptSender<J>, J: Judge<S::Value, S::Error>> Future for Calling<S, J> {
    type Output = Result<S::Value, Failure<S::Error>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Course::Begins = self.course
            && let Some(step) = self.as_mut().begin()
        {
            return self.go_on(Some(step), cx);
        }
        let this = self.as_mut().project();
        if let (Course::Light(light), Some(future)) = (*this.course, this.sending.as_pin_mut()) {
            let result = match future.poll(cx) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    let shared = &*this.policy.0;
                    ready!(this.timer.get_or_insert_with(|| sleep(&shared.clock, light.until(shared))).as_mut().poll(cx));
                    let step = self.as_mut().machine().driver.timed_out();
                    return self.go_on(Some(step), cx);
                }
            };
            if fast_path::is_plain(&this.policy.0, &this.judge.judge(&result))
                && let Ok(value) = result
            {
                light.succeeded(&this.policy.0);
                *this.course = Course::Over;
                return Poll::Ready(Ok(value));
            }
            *this.last = Some(result);
            let step = self.as_mut().judged();
            return self.go_on(step, cx);
        }
        self.go_on(None, cx)
    }
}

impl<S: AttemptSender<J>, J: Judge<S::Value, S::Error>> Calling<S, J> {
    /// Starts the call. Returns the machine's first step, if the machine is needed.
    #[inline]
    fn begin(self: Pin<&mut Self>) -> Option<DriverStep> {
        let mut this = self.project();
        let shared = &*this.policy.0;
        let (started, answered) = match &shared.first {
            Some(first) if this.sender.is_plain() && shared.reporter.hook.is_none() => match Light::begin(shared, first) {
                Ok(light) => {
                    this.sending.set(Some(this.sender.send(Attempt::first(first))));
                    *this.course = Course::Light(light);
                    return None;
                }
                Err((refused, started)) => (started, Some(refused)),
            },
            Some(_) | None => (shared.clock.mono(), None),
        };
        let (driver, step) = fast_path::machine(this.policy, this.sender.terms(), started, answered);
        *this.course = Course::Full;
        *this.full = Some(Full::boxed(driver));
        Some(step)
    }

    /// Returns the machine, and creates it if necessary.
    #[cold]
    fn machine(self: Pin<&mut Self>) -> &mut Full {
        let this = self.project();
        if let Course::Light(light) = *this.course {
            *this.course = Course::Full;
            *this.full = Some(Full::boxed(light.into_machine(this.policy, this.sender.terms())));
        }
        let Some(full) = this.full else { unreachable!("a future that has ended is not polled again") };
        full
    }

    /// Passes the meaning of the last result to the machine.
    #[cold]
    fn judged(mut self: Pin<&mut Self>) -> Option<DriverStep> {
        let _: &mut Full = self.as_mut().machine();
        let this = self.project();
        let (Some(full), Some(result)) = (this.full, &*this.last) else { return None };
        Some(full.driver.responded(this.judge.judge(result)))
    }

    fn go_on(mut self: Pin<&mut Self>, mut next: Option<DriverStep>, cx: &mut Context<'_>) -> Poll<Result<S::Value, Failure<S::Error>>> {
        let _: &mut Full = self.as_mut().machine();
        let mut this = self.project();
        let Some(Full { driver, stage }) = this.full.as_deref_mut() else { unreachable!("the machine is there") };
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => match stage {
                    Stage::Sending { until } => match this.sending.as_mut().as_pin_mut().map(|future| future.poll(cx)) {
                        Some(Poll::Ready(result)) => {
                            let step = driver.responded(this.judge.judge(&result));
                            *this.last = Some(result);
                            step
                        }
                        Some(Poll::Pending) => {
                            ready!(this.timer.get_or_insert_with(|| sleep(driver.clock(), *until)).as_mut().poll(cx));
                            driver.timed_out()
                        }
                        None => unreachable!("what is sent is there"),
                    },
                    Stage::Waiting { timer } => {
                        ready!(timer.as_mut().poll(cx));
                        driver.waited()
                    }
                    Stage::Queued { timer } => match driver.poll_turn(cx) {
                        Poll::Ready(step) => step,
                        Poll::Pending => {
                            ready!(timer.as_mut().poll(cx));
                            driver.gave_up_line()
                        }
                    },
                    Stage::Asking { answer } => driver.answered(ready!(answer.as_mut().poll(cx))),
                },
            };
            // A finished attempt may hold the connection that the next one needs.
            this.sending.set(None);
            *this.timer = None;
            *stage = match step {
                DriverStep::Send(attempt) => {
                    // The last response may hold it as well, and is no longer needed.
                    *this.last = None;
                    let until = driver.now() + attempt.timeout;
                    this.sending.set(Some(this.sender.send(attempt)));
                    Stage::Sending { until }
                }
                DriverStep::Wait(until) => Stage::Waiting { timer: sleep(driver.clock(), until) },
                DriverStep::Ask(answer) => Stage::Asking { answer },
                DriverStep::Queue(until) => Stage::Queued { timer: sleep(driver.clock(), until) },
                DriverStep::Finish(finish) => {
                    let class = driver.class;
                    *this.course = Course::Over;
                    *this.full = None;
                    return Poll::Ready(conclude(finish, class, this.last.take()));
                }
            }
        }
    }
}

impl Full {
    /// The stage is a placeholder: each caller sets the machine's next step at once.
    fn boxed(driver: Driver) -> Box<Self> {
        let until = driver.now();
        Box::new(Self { driver, stage: Stage::Sending { until } })
    }
}

/// Releases the permit of the first attempt by dropping a machine. Not inlined: finished calls are dropped too, and should not reserve
/// stack for a machine.
#[cold]
#[inline(never)]
fn abandon<S: AttemptSender<J>, J>(light: Light, policy: &Policy, sender: &mut S) {
    drop(light.into_machine(policy, sender.terms()));
}

fn sleep(clock: &Clock, until: Mono) -> Timer {
    let clock = clock.clone();
    Box::pin(async move { clock.sleep_until(until).await })
}

/// Returns the other side's last response, whatever it is, if there is one.
fn conclude<T, E>(finish: CallEnd, class: Option<seawall_core::record::Class>, last: Option<Result<T, E>>) -> Result<T, Failure<E>> {
    match (finish.outcome, last) {
        (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, Some(Ok(value))) => Ok(value),
        (Outcome::Refused(_), Some(Ok(_))) | (_, None) => Err(Failure { error: None, finish, class }),
        (_, Some(Err(error))) => Err(Failure { error: Some(error), finish, class }),
    }
}

impl<S: AttemptSender<J>, J> fmt::Debug for Calling<S, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calling")
    }
}

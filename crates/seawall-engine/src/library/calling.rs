//! A call under way, as a future without a box on its way to success: only waits that happen are put on the heap.

use super::attempt::Attempt;
use super::driver::{Asking, Driver, Step};
use super::failure::Failure;
use super::judge::Judge;
use super::light::{self, Light};
use super::policy::Policy;
use super::request::Terms;
use crate::clock::Clock;
use pin_project_lite::pin_project;
use seawall_core::call::{Finish, Outcome};
use seawall_core::time::Mono;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Makes single attempts: a closure, or a service that is sent the same request again.
pub trait Sender {
    /// What a good attempt gives.
    type Value;
    /// What a bad one gives.
    type Error;
    /// One attempt.
    type Future: Future<Output = Result<Self::Value, Self::Error>>;

    /// What the call is to the policy.
    fn terms(&mut self) -> Terms;

    /// Whether these terms ask for no more than any other call of the policy, up to its first result.
    fn is_plain(&self) -> bool;

    /// Begins an attempt.
    fn send(&mut self, attempt: Attempt) -> Self::Future;
}

/// A closure and its terms, if it has any.
#[derive(Debug)]
pub(super) struct Closure<F> {
    pub(super) send: F,
    pub(super) terms: Option<Box<Terms>>,
}

impl<F, Fut, T, E> Sender for Closure<F>
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
    /// A call under way. It ends with the value, or with a [`Failure`].
    pub struct Calling<S: Sender, J> {
        policy: Policy,
        sender: S,
        judge: J,
        course: Course,
        #[pin]
        stage: Stage<S::Future>,
        last: Option<Result<S::Value, S::Error>>,
    }

    impl<S: Sender, J> PinnedDrop for Calling<S, J> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Course::Light(light) = *this.course {
                // The machine gives back what the attempt holds when it is dropped itself.
                drop(light.into_machine(this.policy, this.sender.terms()));
            }
        }
    }
}

enum Course {
    Begins,
    /// The first attempt is out, and there is no machine.
    Light(Light),
    Full(Box<Driver>),
    Over,
}

pin_project! {
    #[project = StageNow]
    enum Stage<F> {
        Between,
        // The timer is made when the attempt does not answer at once.
        Sending { #[pin] future: F, until: Mono, timer: Option<Timer> },
        Waiting { timer: Timer },
        Queued { timer: Timer },
        Asking { answer: Asking },
    }
}

impl<S: Sender, J> Calling<S, J> {
    #[inline]
    pub(super) const fn new(policy: Policy, judge: J, sender: S) -> Self {
        Self { policy, sender, judge, course: Course::Begins, stage: Stage::Between, last: None }
    }
}

impl<S: Sender, J: Judge<S::Value, S::Error>> Future for Calling<S, J> {
    type Output = Result<S::Value, Failure<S::Error>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Course::Begins = self.course
            && let Some(step) = self.as_mut().begin()
        {
            return self.go_on(Some(step), cx);
        }
        let this = self.as_mut().project();
        if let (Course::Light(light), StageNow::Sending { future, until, timer }) = (&*this.course, this.stage.project()) {
            let result = match future.poll(cx) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    ready!(timer.get_or_insert_with(|| sleep(&this.policy.0.clock, *until)).as_mut().poll(cx));
                    let step = self.as_mut().machine().timed_out();
                    return self.go_on(Some(step), cx);
                }
            };
            if light::is_plain(&this.policy.0, &this.judge.judge(&result))
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

impl<S: Sender, J: Judge<S::Value, S::Error>> Calling<S, J> {
    /// Begins; what the machine wants, where it is needed for that.
    #[inline]
    fn begin(self: Pin<&mut Self>) -> Option<Step> {
        let mut this = self.project();
        let shared = &*this.policy.0;
        let (started, answered) = match &shared.first {
            Some(first) if this.sender.is_plain() && shared.reporter.hook.is_none() => match Light::begin(shared, first) {
                Ok(light) => {
                    let future = this.sender.send(Attempt::first(first));
                    this.stage.set(Stage::Sending { future, until: light.started + first.timeout, timer: None });
                    *this.course = Course::Light(light);
                    return None;
                }
                Err((refused, started)) => (started, Some(refused)),
            },
            Some(_) | None => (shared.clock.mono(), None),
        };
        let (driver, step) = light::machine(this.policy, this.sender.terms(), started, answered);
        *this.course = Course::Full(driver);
        Some(step)
    }

    /// The machine, brought in where there was none.
    #[cold]
    fn machine(self: Pin<&mut Self>) -> &mut Driver {
        let this = self.project();
        if let Course::Light(light) = *this.course {
            *this.course = Course::Full(light.into_machine(this.policy, this.sender.terms()));
        }
        let Course::Full(driver) = this.course else { unreachable!("a future that has ended is not polled again") };
        driver
    }

    /// Tells the machine what the last result means.
    #[cold]
    fn judged(mut self: Pin<&mut Self>) -> Option<Step> {
        let _: &mut Driver = self.as_mut().machine();
        let this = self.project();
        let (Course::Full(driver), Some(result)) = (this.course, &*this.last) else { return None };
        Some(driver.responded(this.judge.judge(result)))
    }

    fn go_on(mut self: Pin<&mut Self>, mut next: Option<Step>, cx: &mut Context<'_>) -> Poll<Result<S::Value, Failure<S::Error>>> {
        let _: &mut Driver = self.as_mut().machine();
        let mut this = self.project();
        let Course::Full(driver) = &mut *this.course else { unreachable!("the machine is there") };
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => match this.stage.as_mut().project() {
                    StageNow::Sending { future, until, timer } => match future.poll(cx) {
                        Poll::Ready(result) => {
                            let step = driver.responded(this.judge.judge(&result));
                            *this.last = Some(result);
                            step
                        }
                        Poll::Pending => {
                            ready!(timer.get_or_insert_with(|| sleep(driver.clock(), *until)).as_mut().poll(cx));
                            driver.timed_out()
                        }
                    },
                    StageNow::Waiting { timer } => {
                        ready!(timer.as_mut().poll(cx));
                        driver.waited()
                    }
                    StageNow::Queued { timer } => match driver.poll_turn(cx) {
                        Poll::Ready(step) => step,
                        Poll::Pending => {
                            ready!(timer.as_mut().poll(cx));
                            driver.gave_up_line()
                        }
                    },
                    StageNow::Asking { answer } => driver.answered(ready!(answer.as_mut().poll(cx))),
                    StageNow::Between => unreachable!("a stage follows each step"),
                },
            };
            match step {
                Step::Send(attempt) => {
                    // The last answer is not needed any more, and may hold the connection that this one wants.
                    *this.last = None;
                    let until = driver.now() + attempt.timeout;
                    this.stage.set(Stage::Sending { future: this.sender.send(attempt), until, timer: None });
                }
                Step::Wait(until) => this.stage.set(Stage::Waiting { timer: sleep(driver.clock(), until) }),
                Step::Ask(answer) => this.stage.set(Stage::Asking { answer }),
                Step::Queue(until) => this.stage.set(Stage::Queued { timer: sleep(driver.clock(), until) }),
                Step::Finish(finish) => {
                    let class = driver.class;
                    this.stage.set(Stage::Between);
                    *this.course = Course::Over;
                    return Poll::Ready(conclude(finish, class, this.last.take()));
                }
            }
        }
    }
}

fn sleep(clock: &Clock, until: Mono) -> Timer {
    let clock = clock.clone();
    Box::pin(async move { clock.sleep_until(until).await })
}

/// The other side's last answer, whatever it is, unless there is none to give.
fn conclude<T, E>(finish: Finish, class: Option<seawall_core::record::Class>, last: Option<Result<T, E>>) -> Result<T, Failure<E>> {
    match (finish.outcome, last) {
        (Outcome::Success | Outcome::Failed(_) | Outcome::Replayed, Some(Ok(value))) => Ok(value),
        (Outcome::Refused(_), Some(Ok(_))) | (_, None) => Err(Failure { error: None, finish, class }),
        (_, Some(Err(error))) => Err(Failure { error: Some(error), finish, class }),
    }
}

impl<S: Sender, J> fmt::Debug for Calling<S, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calling")
    }
}

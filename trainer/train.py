"""The training loop. What keeps it alive is elsewhere: `engine` saves and restores, `resilience` restarts.

Run by ft_launcher, one process per GPU: `python -m trainer.train`.
"""

from __future__ import annotations

import logging

from trainer import early  # noqa: F401  first
from trainer.attempt import Attempt
from trainer.faults.schema import Phase
from trainer.process import Ended, Process, run_to_the_end
from trainer.resilience.in_process import wrap
from trainer.resilience.peers import await_word, peer_is_gone


def train(attempt: Attempt) -> Ended:
    """From the restored step to the target, or to a planned stop."""
    stepper, engine, loop = attempt.stepper, attempt.engine, attempt.config.loop
    batches = attempt.training_batches()
    for step in range(attempt.first_step, loop.steps + 1):
        attempt.begin(step)
        stepper.run(step, batches)
        attempt.end(step)
        if loop.eval_every and step % loop.eval_every == 0:
            attempt.evaluate(step)
        if engine.stop_step() == step:
            return attempt.stopped(step)
    return attempt.finished(loop.steps)


def run(process: Process, iteration: int) -> Ended:
    """One attempt: form the groups, build, restore, train. `iteration` counts in-process restarts."""
    process.refuse_endless_starts()
    try:
        with process.starting(iteration):
            process.strike(Phase.START_UP)
            attempt = Attempt.open(process, iteration)
        with attempt:
            return train(attempt)
    except RuntimeError as error:
        if peer_is_gone(error):
            if process.config.recovery.in_process:
                await_word()
            process.exit_at_once(error)
        raise


def main() -> int:
    """Exit code of this rank; `trainer.launch` reads the verdict, not this."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    process = Process.from_environment()
    if not process.config.recovery.in_process:
        return process.leave(run(process, 0))
    restarting = wrap(
        lambda call: run(process.watched_by(call), call.iteration),
        timeouts=process.timeouts,
        world_size=process.world_size,
        on_fault=process.interrupted,
        on_release=process.release,
    )
    return process.leave(restarting())


if __name__ == "__main__":
    run_to_the_end(main)

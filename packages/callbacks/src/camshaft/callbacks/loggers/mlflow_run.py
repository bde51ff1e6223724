"""Finding and making runs of MLflow."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from camshaft.hooks_core.user_warnings import warn_user

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def start_run(
    client: MlflowClient,
    experiment_name: str,
    artifact_location: str | None,
    run_name: str | None,
    tags: Mapping[str, str],
) -> Run:
    """A new run, in an experiment that is made if it is not there.

    Args:
        client: Where to.
        experiment_name: Name of the experiment.
        artifact_location: Where it keeps artifacts, if it is made; one that is there keeps its own, with a warning.
        run_name: Name of the run; None invents one.
        tags: Tags of the run, beside those that MLflow finds out, such as the user and the commit.
    """
    from mlflow.tracking.context.registry import resolve_tags

    with _randomness_of_its_own():
        experiment_id = _experiment_id(client, experiment_name, artifact_location)
        return client.create_run(experiment_id, run_name=run_name, tags=resolve_tags(dict(tags)))


def adopt_run(client: MlflowClient, run_id: str, run_name: str | None, tags: Mapping[str, str]) -> Run:
    """A run that is there, running again.

    Args:
        client: Where it is.
        run_id: Which one.
        run_name: Its new name; None leaves the one that it has.
        tags: Tags to set.

    Raises:
        MlflowException: If there is no such run.
    """
    client.update_run(run_id, status="RUNNING", name=run_name)
    for name, value in tags.items():
        client.set_tag(run_id, name, value)
    return client.get_run(run_id)


def _experiment_id(client: MlflowClient, name: str, artifact_location: str | None) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            experiment_id: str = client.create_experiment(name, artifact_location)
            return experiment_id
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process may have been faster
            if experiment is None:
                raise
    if artifact_location not in (None, experiment.artifact_location):
        warn_user(
            f"The MLflow experiment {name!r} is there already and keeps artifacts in {experiment.artifact_location!r}, "
            f"not in artifact_location={artifact_location!r}."
        )
    existing_id: str = experiment.experiment_id
    return existing_id


@contextmanager
def _randomness_of_its_own() -> Iterator[None]:
    """MLflow draws names from Python's generator: training's draws stay as they were, and equal seeds name apart."""
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)

"""Whether a model that is to be served is an encoder of texts, found out before it is started."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.generation.folder import read_folder
from launcher.generation.text.configs import GENAI
from launcher.generation.text.tokenizer import available
from launcher.inspection.signature import Signature, declared_by
from launcher.serving.embedding.encoder import Encoder, encoder_of, ends_of
from launcher.serving.embedding.folder import read_encoder_folder, texts_beside
from sharding.slices.manifest import FILE_NAME as MANIFEST
from sharding.slices.manifest import read_manifest

if TYPE_CHECKING:
    from launcher.job.job import Job

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """An encoder, and the job of its graph."""

    job: Job
    encoder: Encoder


def find_encoder(job: Job, texts: Path | None) -> Found | None:
    """The encoder of texts that a job is to serve; None where it serves something else. ``texts``: the folder
    with its tokenizer, if it is another one than the model's. Raises `ConfigError` for one that cannot be
    served."""
    if job.model is None or not job.model.exists() or not available():
        return None
    folder = texts_beside(job.model, texts)
    if folder is None or (job.model.is_dir() and (job.model / GENAI).is_file()):
        return None
    sliced = (job.model / MANIFEST).is_file()
    graph = job.model
    if job.model.is_dir() and not sliced:
        found = read_folder(job.model)
        if len(found.parts) > 1:
            return None
        graph = found.decoder
    signature = _of_slices(graph) if sliced else declared_by(graph, job.key)
    if signature is None:
        return None
    inputs, outputs, _ = signature.specs()
    try:
        said = read_encoder_folder(folder)
        ends = ends_of(inputs, outputs, told=said.told)
        return None if ends is None else Found(replace(job, model=graph), encoder_of(said, ends))
    except ConfigError as error:
        if texts is not None or job.model.is_dir():
            raise
        log.warning("%s is served without embeddings: %s", job.model, error)  # nobody has asked for them
        return None


def _of_slices(folder: Path) -> Signature:
    manifest = read_manifest(folder)
    return Signature(tuple(manifest.inputs), tuple(manifest.optional_inputs), tuple(manifest.outputs))

"""What an arm can be resumed from: saved on the service, named in the store, deleted at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness.errors import RunError, ServiceError
from harness.fingerprints import distance, initial_pairs, noise_floor, tolerance
from harness.records import Checkpoint
from harness.store import Entry
from harness.training.context import ArmContext, ArmState
from harness.training.fingerprints import learner_fingerprint
from harness.training.recording_proxy import RecordingProxy
from harness.training.service import says_no
from harness.training.snapshots import KEPT_SECONDS, Snapshots, delete_saved

if TYPE_CHECKING:
    import tinker


async def open_arm(context: ArmContext) -> ArmState:
    """The arm's client: restored from its last checkpoint, else fresh from its init seed."""
    spec = context.registration.training
    checkpoint: Checkpoint | None = context.entry.read("checkpoint")
    proxy = RecordingProxy(context.service, updates_behind(context.entry, checkpoint))
    service = proxy.client()
    snapshots = Snapshots(service, context.arm.lag, named=context.lagged)
    if checkpoint is None:
        client = await service.create_lora_training_client_async(
            context.base_model,
            rank=context.lora_rank,
            seed=context.arm.seed,
            train_mlp=spec.train_mlp,
            train_attn=spec.train_attn,
            train_unembed=spec.train_unembed,
        )
        version = 0
    else:
        client = await restored(context, service, checkpoint, snapshots)
        await refuse_other_weights(context, client, checkpoint)
        version = checkpoint["version"]
    _, info = await asyncio.gather(snapshots.save(client, version), client.get_info_async())
    before = context.entry.read_step(version - 1) if version else None
    return ArmState(
        client,
        snapshots,
        version,
        info.model_data.model_name or "",
        proxy,
        estimator=None if before is None else before.get("estimator_state"),
    )


async def restored(
    context: ArmContext,
    service: tinker.ServiceClient,
    checkpoint: Checkpoint,
    snapshots: Snapshots,
) -> tinker.TrainingClient:
    """The client of a checkpoint, and the snapshots that its next steps sample from.

    Raises:
        ServiceError: the service has one of them no longer. An older snapshot can't be made again,
            and a newer one in its place would be another lag: the arm has to start over.
    """
    create = service.create_training_client_from_state_with_optimizer_async
    text = context.adapter.text(context.train[0])
    try:
        await snapshots.restore(checkpoint["snapshots"], text)
        return await create(checkpoint["state_path"])
    except Exception as error:
        if not says_no(error):
            raise
        raise ServiceError(
            f"arm {context.arm.name}: what its checkpoint after {checkpoint['version']} updates "
            f"needs is gone from the service ({' '.join(str(error).split())}); to start the arm "
            f"over, delete {context.entry.folder} and run again"
        ) from error


async def refuse_other_weights(
    context: ArmContext, client: tinker.TrainingClient, checkpoint: Checkpoint
) -> None:
    """Hold a restored client against the fingerprint of the weights that were saved.

    The restored weights are read twice, so that what the service makes of them by itself is known.

    Raises:
        RunError: they differ; what was trained from here on would be another run.
    """
    saved = checkpoint.get("fingerprint")
    if saved is None:
        return
    text = context.adapter.text(context.train[0])
    restored, again = await asyncio.gather(*(learner_fingerprint(client, text) for _ in range(2)))
    pairs = [(restored, again), *initial_pairs(context.entry.read_step(0))]
    difference, allowed = distance(saved, restored), tolerance(noise_floor(pairs))
    if not difference <= allowed:
        raise RunError(
            f"arm {context.arm.name}: log-probs of the weights restored after "
            f"{checkpoint['version']} updates differ by {difference:.3g} from the saved ones', "
            f"bound {allowed:.3g}; run again with --retrain"
        )


def updates_behind(entry: Entry, checkpoint: Checkpoint | None) -> dict[str, int]:
    """How many updates are behind everything that a checkpoint names, by path.

    A version counts steps; of these some update nothing, as their records say.
    """
    if checkpoint is None:
        return {}
    records = [entry.read_step(step) for step in range(checkpoint["version"])]
    updates = [record["metrics"].get("updated", 1.0) if record else 1.0 for record in records]
    saved = {path: int(version) for version, path in checkpoint["snapshots"].items()}
    saved[checkpoint["state_path"]] = checkpoint["version"]
    return {path: int(sum(updates[:version])) for path, version in saved.items()}


async def save_checkpoint(context: ArmContext, state: ArmState) -> None:
    """Save weights and optimizer on the service, then say so in the store: the path comes last.

    Before the first step there is nothing to keep: the init seed makes the same client again. Then
    the checkpoint before it, and the snapshots that only that one needed, are deleted.
    """
    known: Checkpoint | None = context.entry.read("checkpoint")
    if state.version == (0 if known is None else known["version"]):
        return
    sent = await state.client.save_state_async(f"{state.version:06d}", KEPT_SECONDS)
    fingerprint = await learner_fingerprint(state.client, context.adapter.text(context.train[0]))
    saved = await sent.result_async()
    await state.saved()
    checkpoint = Checkpoint(
        version=state.version,
        state_path=saved.path,
        snapshots=state.snapshots.paths(state.version),
        fingerprint=fingerprint,
    )
    context.entry.publish("checkpoint", checkpoint)
    before = [] if known is None else [known["state_path"]]
    await delete_saved(context.service, [*before, *state.snapshots.outdated(state.version)])


async def delete_checkpoints(service: tinker.ServiceClient, entry: Entry, state: ArmState) -> None:
    """Delete what an arm has left on the service to be resumed from; it never will be."""
    await state.saved()
    checkpoint: Checkpoint | None = entry.read("checkpoint")
    resumable = [] if checkpoint is None else [checkpoint["state_path"]]
    await delete_saved(service, [*resumable, *state.snapshots.outdated(None)])

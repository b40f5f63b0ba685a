"""Whether a folder may become a sweep, or go on as the one that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from vllm_frontier.errors import StoreError
from vllm_frontier.store import atomic, manifest
from vllm_frontier.store.manifest import Change, Difference, Manifest
from vllm_frontier.store.paths import SweepPaths


def settle(paths: SweepPaths, given: Manifest, *, allow_changed: bool) -> tuple[Manifest, bool]:
    """Find or write `sweep.yaml`, as the writer."""
    if not paths.sweep_yaml.exists():
        _remove_temporaries(paths)
        paths.attempts.mkdir(exist_ok=True)
        manifest.write(paths, given)
        return manifest.read(paths), False
    stored = manifest.read(paths)
    content = replace(stored, config=given.config)
    _refuse_another_sweep(paths, stored, given, allow_changed=allow_changed)
    differs = change_in_words(_unknown_differences(stored, given))
    if differs is not None:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        change = Change(given.identity, since, differs)
        content = replace(content, changes=(*stored.changes, change))
    paths.attempts.mkdir(exist_ok=True)
    _remove_temporaries(paths)
    if manifest.plain(content.config) != stored.config or content.changes != stored.changes:
        # The same sweep with another grid or budget: what a later `resume` goes on with.
        manifest.write(paths, content)
        return manifest.read(paths), True
    return stored, True


def _refuse_another_sweep(
    paths: SweepPaths, stored: Manifest, given: Manifest, *, allow_changed: bool
) -> None:
    """Refuse to mix results, unless that is wanted and possible."""
    fixed = manifest.fixed_differences(stored, given)
    changed = _unknown_differences(stored, given)
    if fixed:
        way_out = "choose another folder"
    elif changed and not allow_changed:
        way_out = "go on in it all the same with --allow-changed, or choose another folder"
    else:
        return
    told = "; ".join(str(each) for each in [*fixed, *changed])
    raise StoreError(f"{paths.root} holds another sweep's results: {told}; {way_out}")


def _unknown_differences(stored: Manifest, given: Manifest) -> list[Difference]:
    """What is new of an identity under which the sweep never ran."""
    return [] if stored.knows(given.identity) else manifest.differences(stored, given)


def change_in_words(found: Sequence[Difference]) -> str | None:
    """How an identity differs from another one, as one text; None where it does not."""
    return "; ".join(each.as_change() for each in found) or None


def refuse_foreign_files(paths: SweepPaths) -> None:
    """Refuse a folder that is in use for something else, before a file is put into it."""
    if paths.sweep_yaml.exists():
        return
    foreign = manifest.foreign_files(paths)
    if foreign:
        raise StoreError(
            f"{paths.root} holds {foreign[0]} but no {paths.sweep_yaml.name}; "
            "choose an empty or new folder"
        )


def _remove_temporaries(paths: SweepPaths) -> None:
    """Remove what a killed writer left half written."""
    unfinished = (each.root for each in paths.existing_attempts() if not each.outcome_json.exists())
    for folder in (paths.root, *unfinished):
        for each in folder.iterdir():
            if atomic.is_temporary(each):
                each.unlink(missing_ok=True)

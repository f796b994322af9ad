"""A key-value store in host memory that speaks the connector protocol, slowly and fallibly."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from di_scheduler.hit import ExternalHit
from di_scheduler.protocols import Transfer, TransferReport
from di_scheduler.request import Int32Array
from di_scheduler.testing.device import FakeDevice


@dataclass(slots=True)
class StoredRequest:
    """What a prefill rank left behind for one prompt."""

    num_tokens: int
    keys: list[dict[int, tuple[int, int]]]
    ring: dict[int, tuple[int, int]]


@dataclass(slots=True)
class FakeStore:
    """Shared by the connectors of all ranks.

    Attributes:
        by_prompt: Finished prompts by the bytes of their token ids.
    """

    by_prompt: dict[bytes, StoredRequest] = field(default_factory=dict)


class FakeConnector:
    """Moves keys and rings between one fake device and a `FakeStore`.

    Args:
        store: Where requests are kept.
        device: The device of this rank.
        delay: Polls that a transfer takes.
        with_state: Whether window rings are offered with the blocks.
        fails: Request ids whose loads fail.
    """

    def __init__(
        self,
        store: FakeStore,
        device: FakeDevice,
        delay: int = 2,
        with_state: bool = True,
        fails: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.device = device
        self.delay = delay
        self.with_state = with_state
        self.fails = set(fails)
        self.canceled: list[int] = []
        self._loads: list[tuple[int, Transfer]] = []
        self._sends: list[tuple[int, Transfer]] = []
        self._sources: dict[int, StoredRequest] = {}
        self._found: dict[str, StoredRequest] = {}

    def lookup(
        self, request_id: str, token_ids: Int32Array, block_hashes: Sequence[bytes]
    ) -> ExternalHit | None:
        """Offers the longest stored prefix: whole blocks, or everything if the state is there."""
        size = self.device.config.block_size
        for length in range(len(token_ids), 0, -1):
            stored = self.store.by_prompt.get(token_ids[:length].tobytes())
            if stored is not None:
                self._found[request_id] = stored
                count = length if self.with_state else length // size * size
                return ExternalHit(count, self.with_state) if count else None
        return None

    def load(self, transfer: Transfer) -> None:
        """Remembers the load; the copy happens when it completes."""
        self._sources[transfer.uid] = self._found[transfer.request_id]
        self._loads.append((self.delay, transfer))

    def send(self, transfer: Transfer) -> None:
        """Copies out at once; the source counts as busy until the send is reported."""
        size, keys = self.device.config.block_size, []
        tokens: list[int] = []
        for index, block in enumerate(transfer.block_ids.tolist()):
            filled = min(size, transfer.num_tokens - index * size)
            content = {offset: self.device.keys[block, offset] for offset in range(filled)}
            keys.append(content)
            tokens.extend(content[offset][1] for offset in range(filled))
        ring = dict(self.device.rings.get(transfer.slot, {}))
        name = np.array(tokens, np.int32).tobytes()
        self.store.by_prompt[name] = StoredRequest(transfer.num_tokens, keys, ring)
        self._sends.append((self.delay, transfer))

    def cancel(self, uid: int) -> None:
        """Notes the wish; the transfer still ends by itself."""
        self.canceled.append(uid)

    def poll(self) -> TransferReport:
        """Completes what has waited long enough."""
        loaded, failed = [], []
        for transfer in self._ended(self._loads):
            if transfer.request_id in self.fails:
                failed.append(transfer.uid)
                continue
            stored = self._sources.pop(transfer.uid)
            for index, block in enumerate(transfer.block_ids.tolist(), transfer.first_block):
                for offset, value in stored.keys[index].items():
                    self.device.keys[block, offset] = value
            if transfer.has_state:
                self.device.rings[transfer.slot] = dict(stored.ring)
            loaded.append(transfer.uid)
        sent = [transfer.uid for transfer in self._ended(self._sends)]
        return TransferReport(loaded, failed, sent)

    def _ended(self, queue: list[tuple[int, Transfer]]) -> list[Transfer]:
        due = [transfer for left, transfer in queue if left <= 0]
        queue[:] = [(left - 1, transfer) for left, transfer in queue if left > 0]
        return due

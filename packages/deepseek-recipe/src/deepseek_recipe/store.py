"""Stored responses, for `previous_response_id` and `conversation` of the Responses protocol."""

from __future__ import annotations

import json
import threading
from typing import Any, Protocol

from deepseek_recipe._recipe import ConversationRequest, ResponsesResponse

Item = dict[str, Any]


class ResponseStore(Protocol):
    """What `ResponsesRequest.convert(options, store)` asks of a store. The caller saves."""

    def load(self, response_id: str) -> list[Item] | None:
        """Return the items of a response or conversation, or `None` if it is unknown.

        They are its whole input, then its output.
        """


class InMemoryResponseStore:
    """A store that lives as long as the process, for tests and single-process services.

    It keeps the newest `max_responses` responses. Any number of threads may use it.
    """

    def __init__(self, max_responses: int = 1024) -> None:
        self._items: dict[str, list[Item]] = {}
        self._max_responses = max_responses
        self._lock = threading.Lock()

    def load(self, response_id: str) -> list[Item] | None:
        """Return the stored items of a response, or `None`."""
        with self._lock:
            return self._items.get(response_id)

    def save(
        self, response_id: str, request: ConversationRequest, response: ResponsesResponse
    ) -> None:
        """Keep a finished response: the input of its request followed by its output.

        A request with `store: false`, or one that was converted without a store, carries no input
        items, and nothing is kept.
        """
        history = request.history_json()
        if history is None:
            return
        items = json.loads(history) + json.loads(response.output_json())
        with self._lock:
            self._items.pop(response_id, None)
            self._items[response_id] = items
            while len(self._items) > self._max_responses:
                del self._items[next(iter(self._items))]

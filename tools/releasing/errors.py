"""The one error of a release: something a person has to put right first."""


class ReleaseError(Exception):
    """A release or an index cannot be made; the message says why and what to do."""

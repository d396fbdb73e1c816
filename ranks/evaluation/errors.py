"""`EvaluationError`."""

from ranks.errors import ShardrunError


class EvaluationError(ShardrunError):
    """Data, labels or metrics do not fit the model or one another."""

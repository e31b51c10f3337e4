"""Plans of which bound ones were made, and which themselves reserve nothing."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

# By their ids.
_LEFT_UNBOUND: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()


def note_bound(plan: Plan) -> None:
    """Notes that a bound plan was made of this one, which itself stays unbound."""
    _LEFT_UNBOUND[id(plan)] = plan


def is_left_unbound(plan: Plan) -> bool:
    """Whether a bound plan was made of this very object."""
    return _LEFT_UNBOUND.get(id(plan)) is plan

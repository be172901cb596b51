"""Everything that gives torch another function, attribute or name, and what stands there instead."""

from ..base.patching import Patches

#: What is there from `enable` on, and what comes in when it is first needed; `disable` takes it back.
held = Patches()

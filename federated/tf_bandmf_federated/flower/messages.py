"""Names of the records and entries in messages between the server and devices.

| message | record | entries |
|---|---|---|
| `train` | `arrays` | the model's weights |
| | `config` | `PLAN`, `RUN`, `ROUND`, `NOT_TRAINED`, and the user's entries |
| | `GIVEN` | `RECEIPT`, different for each device |
| its reply | `arrays` | the clipped update |
| | `REPLY` | `plan`, `run`, `round`, `device`, `problem`, `last_round`, `receipt` |
| `QUERY` | none | |
| its reply | `REPLY` | `plan`, `device`, `last_round`, `receipt`, `participations` |

`problem` is "" if the device took part, "refused: ..." if the device's record forbids
the participation, and "failed" if the app raised an error. A device sends nothing else.
For example, it sends no training metrics, because they would be exact values without
noise.
"""

from __future__ import annotations

ARRAYS, CONFIG, REPLY = "arrays", "config", "tf-bandmf"
GIVEN = "tf-bandmf.given"
QUERY_ACTION = "tf_bandmf_device"
QUERY = f"query.{QUERY_ACTION}"
PLAN, RUN, ROUND = "tf-bandmf.plan", "tf-bandmf.run", "tf-bandmf.round"
RECEIPT, NOT_TRAINED = "tf-bandmf.receipt", "tf-bandmf.not-trained"
REFUSED, FAILED = "refused", "failed"

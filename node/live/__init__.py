"""What a member shows of itself while it happens: its live events.

`reporter` makes the events of this member, and `subscription` holds them for each that watches.
While somebody watches, the member's status is an event, too, five times a second; otherwise next to
nothing is done. `relay` adds the events of the other members: it asks them over the links between
members, so the page of one member shows the whole cluster. `reports` is the form in
which members send each other events.

Nothing here decides anything: a member without this folder would elect and replicate as it does.
Read first: `reporter`, then `relay`.
"""

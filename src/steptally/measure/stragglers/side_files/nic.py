"""Counters of network cards: CSV of host, device, counter, value, or `rdma statistic show` text.

Names are those of Linux below /sys/class/infiniband/*/ports/*/{counters,hw_counters}. A CSV with
a time column may hold several readings: then a counter's growth counts, else its value, which is
since boot or reset.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from steptally.measure.stragglers.side_files.readings import reading
from steptally.measure.stragglers.side_files.rows import SideFinding

# The link itself: cable, transceiver or switch port.
LINK = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
# A link that was down during the run stopped everybody.
DOWN = ("link_downed", "link_error_recovery")
# Packets lost or late: retransmission stalls a message for microseconds to seconds.
TRANSPORT = (
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "out_of_buffer",
)
# Congestion is normal; ten times that of the other cards is not.
CONGESTION = (
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "port_xmit_wait",
    "port_xmit_discards",
)
OVER_PEERS = 10.0
COLUMNS = {"device", "counter", "value"}
RDMA = re.compile(r"^\s*link\s+(?P<device>[\w.-]+)/(?P<port>\d+)\s+(?P<rest>\w+\s+\d+.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicCounter:
    """One counter of one port: its first and last reading. `readings` is how many there were."""

    host: str | None
    device: str
    counter: str
    first: float
    last: float
    readings: int
    first_time: str | None = None
    last_time: str | None = None


def is_nic_csv(names: Iterable[str]) -> bool:
    """Whether the columns are those of a table of counters."""
    return set(names) >= COLUMNS


def read_nic_csv(lines: Iterable[str], host: str | None = None) -> tuple[list[NicCounter], int]:
    """Every counter of a CSV with the columns device, counter, value (host, port, time).

    The second result counts rows without a device, a counter or a number.
    """
    reader = csv.DictReader((line.replace("\0", "") for line in lines), skipinitialspace=True)
    readings: dict[tuple[str | None, str, str], list[tuple[float, str | None]]] = defaultdict(list)
    lost = 0
    for record in reader:
        row = {str(name).strip().lower(): value for name, value in record.items() if name}
        value, device = reading(row.get("value")), (row.get("device") or "").strip()
        counter = (row.get("counter") or "").strip()
        if value is None or value < 0 or not device or not counter:
            lost += 1
            continue
        port = (row.get("port") or "").strip()
        key = ((row.get("host") or "").strip() or host, f"{device}/{port}" if port else device)
        time = (row.get("time") or row.get("timestamp") or "").strip() or None
        readings[(*key, counter)].append((value, time))
    return [_counter(*key, values) for key, values in readings.items()], lost


def read_rdma_statistic(lines: Iterable[str], host: str | None = None) -> list[NicCounter]:
    """Every counter of `rdma statistic show`; a link that comes again is a later reading.

    >>> read_rdma_statistic(["link mlx5_0/1 out_of_sequence 7"])[0].last
    7.0
    """
    readings: dict[tuple[str, str], list[tuple[float, str | None]]] = defaultdict(list)
    for line in lines:
        if found := RDMA.match(line):
            words = found["rest"].split()
            for name, text in zip(words[::2], words[1::2], strict=False):
                if re.fullmatch("[0-9]{1,20}", text):
                    device = f"{found['device']}/{found['port']}"
                    readings[device, name].append((float(text), None))
    return [_counter(host, *key, values) for key, values in readings.items()]


def judge_nics(counters: Iterable[NicCounter], source: str) -> list[SideFinding]:
    """Findings on counters that grew, or that stand over those of the other cards."""
    by_counter: dict[str, list[NicCounter]] = defaultdict(list)
    for counter in counters:
        by_counter[counter.counter].append(counter)
    findings = []
    for name, cards in by_counter.items():
        for card in cards:
            others = [_amount(other) for other in cards if other is not card]
            told = _judge(card, name, others)
            if told is not None:
                findings.append(_finding(card, *told, source))
    seen = {(card.host, card.device) for cards in by_counter.values() for card in cards}
    named = {(finding.host, finding.device) for finding in findings}
    for host, device in sorted(seen - named, key=str):
        card = next(
            c for cs in by_counter.values() for c in cs if (c.host, c.device) == (host, device)
        )
        findings.append(_finding(card, "healthy", "no link or transport errors", source))
    return findings


def _judge(card: NicCounter, name: str, others: list[float]) -> tuple[str, str] | None:
    """Severity and sentence of one counter, None where it says nothing."""
    amount = _amount(card)
    if amount <= 0 or name not in LINK + TRANSPORT + CONGESTION:
        return None
    middle = median(others) if others else None
    against = "" if middle is None else f"; median of the other {len(others)}: {middle:.0f}"
    if name in CONGESTION:
        if middle is None or amount < OVER_PEERS * max(middle, 1.0):
            return None
        return "notable", f"{_words(card)}{against}: congestion at this card"
    severity = "fault" if name in DOWN and card.readings > 1 else "notable"
    what = (
        "the link itself (cable, transceiver, switch port)"
        if name in LINK
        else ("packets lost and sent again")
    )
    return severity, f"{_words(card)}{against}: {what}"


def _words(card: NicCounter) -> str:
    if card.readings > 1:
        return f"{card.counter} grows by {_amount(card):.0f} in {card.readings} readings"
    return f"{card.counter} is {card.last:.0f} since boot or reset"


def _amount(card: NicCounter) -> float:
    """Growth over the readings; the value where there is one. A reset in between starts at 0."""
    if card.readings == 1:
        return card.last
    return card.last - card.first if card.last >= card.first else card.last


def _counter(
    host: str | None, device: str, counter: str, values: list[tuple[float, str | None]]
) -> NicCounter:
    return NicCounter(
        host=host,
        device=device,
        counter=counter,
        first=values[0][0],
        last=values[-1][0],
        readings=len(values),
        first_time=values[0][1],
        last_time=values[-1][1],
    )


def _finding(card: NicCounter, severity: str, sentence: str, source: str) -> SideFinding:
    return SideFinding(
        severity=severity,
        subject="nic",
        sentence=sentence,
        source=source,
        host=card.host,
        device=card.device,
        first=card.first_time,
        last=card.last_time,
    )

"""Writes small Nsight Systems exports, of the columns a test names."""

import sqlite3

STRINGS = {
    1: "void gemm_kernel<float>(float*)",
    2: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    3: "cudaLaunchKernel_v7000",
    4: "ProfilerStep#7",
    5: "ncclAllReduce",
    6: "Activity Buffer Request",
}
PID = 4242
GLOBAL_PID = (1 << 48) + (PID << 24)
THREAD = GLOBAL_PID + 77
SESSION_NS = 1_779_782_330_176_752_435

KERNEL = {
    "start": 1000,
    "end": 1500,
    "deviceId": 0,
    "streamId": 7,
    "correlationId": 11,
    "globalPid": GLOBAL_PID,
    "demangledName": 1,
    "gridX": 108,
    "gridY": 2,
    "gridZ": 1,
    "blockX": 256,
    "blockY": 1,
    "blockZ": 1,
    "graphId": 0,
}
LAUNCH = {"start": 900, "end": 950, "globalTid": THREAD, "correlationId": 11, "nameId": 3}
COPY = {
    "start": 2000,
    "end": 2100,
    "deviceId": 0,
    "streamId": 7,
    "correlationId": 12,
    "globalPid": GLOBAL_PID,
    "bytes": 4096,
    "copyKind": 8,
    "srcDeviceId": None,
    "dstDeviceId": None,
}
MEMSET = {
    "start": 2200,
    "end": 2210,
    "deviceId": 0,
    "streamId": 7,
    "correlationId": 13,
    "globalPid": GLOBAL_PID,
    "bytes": 64,
}
RANGE = {
    "start": 800,
    "end": 3000,
    "eventType": 59,
    "text": None,
    "textId": 4,
    "globalTid": THREAD,
    "domainId": 0,
}


def write_export(path, **tables):
    """An export of tables by short name, each a list of rows, which are dictionaries by column."""
    names = {"nvtx": "NVTX_EVENTS", "profiler": "PROFILER_OVERHEAD"}
    connection = sqlite3.connect(path)
    write(connection, "StringIds", [{"id": i, "value": v} for i, v in STRINGS.items()])
    write(connection, "TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": SESSION_NS}])
    for name, rows in tables.items():
        write(connection, names.get(name, f"CUPTI_ACTIVITY_KIND_{name.upper()}"), rows)
    connection.commit()
    connection.close()
    return path


def write(connection, table, rows):
    columns = list(rows[0])
    connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    places = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} VALUES ({places})", [tuple(row.values()) for row in rows]
    )

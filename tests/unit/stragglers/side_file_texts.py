"""Side files as the tools print them, shortened; columns and blocks checked against public output.

nvidia-smi: `--help-query-gpu` and `-q` of drivers 470 to 580; topo -m of an 8-GPU host; dcgmi dmon:
names of dcgmlib/src/dcgm_fields.cpp; dcgm-exporter: its README and default-counters.csv.
"""

NEW_CSV = """\
timestamp, index, uuid, pci.bus_id, clocks.current.sm [MHz], clocks.max.sm [MHz], power.draw [W], \
power.limit [W], temperature.gpu, utilization.gpu [%], clocks_event_reasons.active, \
ecc.errors.uncorrected.volatile.total
2026/11/29 10:00:00.100, 0, GPU-aa, 00000000:1B:00.0, 1980 MHz, 1980 MHz, 690.10 W, 700.00 W, 61, \
100 %, 0x0000000000000004, 0
2026/11/29 10:00:01.100, 0, GPU-aa, 00000000:1B:00.0, 1965 MHz, 1980 MHz, 695.10 W, 700.00 W, 62, \
99 %, 0x0000000000000004, 0
2026/11/29 10:00:00.100, 1, GPU-bb, 00000000:3B:00.0, 990 MHz, 1980 MHz, 320.10 W, 700.00 W, 88, \
100 %, 0x0000000000000048, 0
2026/11/29 10:00:01.100, 1, GPU-bb, 00000000:3B:00.0, 1965 MHz, 1980 MHz, 690.10 W, 700.00 W, 86, \
100 %, 0x0000000000000000, 0
"""

OLD_CSV = """\
index, clocks.sm [MHz], power.draw [W], power.limit [W], utilization.gpu [%], \
clocks_throttle_reasons.sw_power_cap, clocks_throttle_reasons.hw_slowdown, \
clocks_throttle_reasons.hw_thermal_slowdown, clocks_throttle_reasons.sw_thermal_slowdown
0, 1410, 398.2, 400.0, 99, Active, Not Active, Not Active, Not Active
1, 1200, [N/A], 400.0, 99, Not Active, Not Active, Not Active, Active
"""

QUERY = """\

==============NVSMI LOG==============

Timestamp                                 : Sat Nov 29 10:00:00 2026
Driver Version                            : 550.90.12
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    GPU UUID                              : GPU-cc
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : {cap}
        HW Slowdown                       : {slow}
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : {brake}
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 12234991553 us
        HW Thermal Slowdown               : {counter} us
        HW Power Braking                  : 0 us
    Utilization
        Gpu                               : {use} %
        Memory                            : 55 %
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : {sram}
            DRAM Correctable              : 3
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 9
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Pending                           : No
        Remapping Failure Occurred        : {remap}
    Temperature
        GPU Current Temp                  : {hot} C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : {power} W
        Current Power Limit               : 400.00 W
    Module Power Readings
        Power Draw                        : 1000.00 W
    Clocks
        Graphics                          : 1410 MHz
        SM                                : 1395 MHz
    Applications Clocks
        Graphics                          : 1275 MHz
    Max Clocks
        SM                                : 1410 MHz
"""

HEALTHY_QUERY = {
    "cap": "Active",
    "slow": "Not Active",
    "thermal": "Not Active",
    "brake": "Not Active",
    "counter": 0,
    "use": 100,
    "sram": 0,
    "remap": "No",
    "hot": 66,
    "power": "396.50",
}

DMON = """\
#Entity   SMCLK   POWER             TMPTR   GPUTL   DVCCTR               RPCTR
ID                W                 C
GPU 0     1980    690.000           61      100     4                    0
GPU 1     1200    310.000           88      100     72                   0
GPU 0     1975    691.000           61      100     4                    0
GPU 1     N/A     311.000           88      100     72                   12
"""

EXPORTER = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",pci_bus_id="00000000:31:00.0",device="nvidia0",\
modelName="NVIDIA H100",Hostname="n1"} 1980
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bb",pci_bus_id="00000000:4B:00.0",device="nvidia1",\
modelName="NVIDIA H100",Hostname="n1"} 1980
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-aa",Hostname="n1"} 128
DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-bb",Hostname="n1",err_code="79",err_msg="fallen"} 79
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="1",UUID="GPU-bb",Hostname="n1"} 5
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{gpu="0",UUID="GPU-aa",Hostname="n1"} 2
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{gpu="0",UUID="GPU-aa",Hostname="n1"} 3
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",Hostname="n1"} 1970
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bb",Hostname="n1"} 1970
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="1",UUID="GPU-bb",Hostname="n1"} 9
"""

DCGM_CSV = """\
timestamp,Hostname,gpu,UUID,DCGM_FI_DEV_SM_CLOCK,DCGM_FI_DEV_ECC_DBE_VOL_TOTAL
1764410400,n3,0,GPU-dd,1980,0
1764410401,n3,0,GPU-dd,1980,2
"""

NIC_CSV = """\
time,host,device,counter,value
10:00,n1,mlx5_0,link_downed,0
10:00,n1,mlx5_1,link_downed,3
10:00,n1,mlx5_0,symbol_error,0
10:00,n1,mlx5_0,out_of_sequence,17
11:00,n1,mlx5_0,link_downed,0
11:00,n1,mlx5_1,link_downed,5
11:00,n1,mlx5_0,symbol_error,0
11:00,n1,mlx5_0,out_of_sequence,90017
"""

RDMA = """\
link mlx5_0/1 rx_write_requests 10 out_of_sequence 0 roce_adp_retrans 0 np_cnp_sent 3
link mlx5_1/1 rx_write_requests 12 out_of_sequence 0 roce_adp_retrans 20668 np_cnp_sent 2
"""

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tPHB\t0-13,28-41\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\t14-27,42-55\t1\t\tN/A\n"
    "NIC0\tPHB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n"
)

RANKS = """\
rank,host,gpu,cpus
0,n1,0,0-13
1,n1,1,0-13
2,n2,1,0-55
"""

TOKENS = """\
step,layer,expert,tokens
1,3,0,1000
1,3,1,1000
1,3,2,1000
1,3,3,5000
2,3,0,900
2,3,1,1100
2,3,2,1000
2,3,3,5000
"""

TOKENS_BY_RANK = """\
{"step": 1, "layer": 3, "rank": 0, "tokens": 900}
{"step": 1, "layer": 3, "rank": 1, "tokens": 1100}
{"step": 1, "layer": 3, "rank": 2, "tokens": 800}
{"step": 1, "layer": 3, "rank": 3, "tokens": 1200}
"""

ALL = {
    "new.csv": NEW_CSV,
    "old.csv": OLD_CSV,
    "query.txt": QUERY.format(**HEALTHY_QUERY),
    "dmon.txt": DMON,
    "metrics.prom": EXPORTER,
    "dcgm.csv": DCGM_CSV,
    "nic.csv": NIC_CSV,
    "rdma.txt": RDMA,
    "topo.txt": TOPOLOGY,
    "ranks.csv": RANKS,
    "tokens.csv": TOKENS,
    "tokens.jsonl": TOKENS_BY_RANK,
}

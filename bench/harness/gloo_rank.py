"""One rank of a gloo all-reduce: gloo_rank.py MEETING_FILE RANK RANKS ELEMENTS. Obeys "step N" like bench_worker."""

import sys
import time

import torch
import torch.distributed as dist


def main():
    meeting, rank, ranks, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=ranks)
    tensor = torch.zeros(elements)
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append("%.9f" % (time.perf_counter() - begin))
        print(" ".join(times), flush=True)


if __name__ == "__main__":
    main()

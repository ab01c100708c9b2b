"""What plain TCP connections carry over the link between two racks: the yardstick for steps on a RackNetwork.

Every host of rack 1 and one of rack 2 have connections to each other, one way or both ways; each sends as much as it can.
"""

import socket
import subprocess
import sys
import threading
import time

PORT = 9000
CHUNK = 1 << 18


def _listen(host):
    listener = socket.create_server((host, PORT))
    print("ready", flush=True)

    def throw_away(connection):
        memory = bytearray(CHUNK)
        while connection.recv_into(memory):
            pass

    while True:
        threading.Thread(target=throw_away, args=(listener.accept()[0],), daemon=True).start()


def _send(host, connections, seconds):
    end, data = time.monotonic() + seconds, bytes(CHUNK)

    def fill():
        with socket.create_connection((host, PORT)) as connection:
            while time.monotonic() < end:
                connection.sendall(data)

    threads = [threading.Thread(target=fill) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(network, link_bits, seconds=4.0, begin=1.5):
    """[{connections, both_ways, share}]: connections of each pair of hosts; the share used of the link's bits a second, the
    mean of the directions in use."""
    start = lambda host, *arguments: subprocess.Popen(network.prefix(host) + [sys.executable, "-B", __file__] + list(arguments),
                                                      stdout=subprocess.PIPE, text=True)
    listeners = [start(host, "listen", network.address(host)) for host in network.hosts]
    try:
        for listener in listeners:
            if listener.stdout.readline().strip() != "ready":
                raise RuntimeError("a listener of plain TCP ended with code %d" % listener.wait())
        pairs = list(zip(network.hosts[:network.per_rack], network.hosts[network.per_rack:2 * network.per_rack]))
        rows = []
        for connections in (1, 2):
            for both_ways in (False, True):
                ways = pairs + [(b, a) for a, b in pairs] if both_ways else pairs
                senders = [start(a, "send", network.address(b), str(connections), str(begin + seconds + 1)) for a, b in ways]
                time.sleep(begin)   # windows open
                before, at = network.counters(), time.monotonic()
                time.sleep(seconds)
                after, elapsed = network.counters(), time.monotonic() - at
                if any([sender.wait() for sender in senders]):
                    raise RuntimeError("a sender of plain TCP failed")
                used = [(after[1, 0][way] - before[1, 0][way]) * 8 / elapsed / link_bits for way in (0, 1)]
                rows.append({"connections": connections, "both_ways": both_ways, "share": sum(used) / 2 if both_ways else used[0]})
        return rows
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        _listen(sys.argv[2])
    else:
        _send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))

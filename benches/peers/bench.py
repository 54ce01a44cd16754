"""What `benches/peers/run` and `benches/costs/run` have in common: the servers and the origin behind them, with their
configuration in a folder; the load of wrk; and the CPU time by request. docs/performance.md has the method.
"""
import argparse
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import platform
import pwd
import re
import resource
import shutil
import signal
import socket
import ssl
import statistics
import string
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
# `baseline` is another build of Guildgate.
OURS = ["guildgate", "baseline"]
CPU = "CPU µs per request"


def secrets(count):
    return ["peers_" + hashlib.sha256(str(n).encode()).hexdigest()[:46] for n in range(count)]


KEYS = secrets(50)


def guild(n):
    """The guild of the key with this number."""
    return str(10 ** 17 + n)


class Config(string.Template):
    delimiter = "@"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def family(pid):
    """A process and all that it started."""
    pids = [pid]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += family(int(child))
    return pids


def cpu_times(pids):
    """The CPU time of each process in nanoseconds, ended threads included: the kernel's clock that clock_getcpuclockid
    names. A process may end meanwhile, as nginx's cache loader does."""
    times = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            times[pid] = time.clock_gettime_ns(~pid << 3 | 2)
    return times


def cpu_since(before):
    """The CPU time of these processes since then, in nanoseconds."""
    return sum(now - before[pid] for pid, now in cpu_times(before).items())


def of_status(pids, file, name):
    """The sum of a field over files of /proc."""
    files = [path for pid in pids for path in pathlib.Path(f"/proc/{pid}").glob(file)]
    return sum(int(re.search(rf"^{name}:\s+(\d+)", path.read_text(), re.M).group(1)) for path in files)


class Bench:
    """The folder with everybody's configuration, the origin, and the loads."""

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.port, self.origin, self.admin = free_port(), free_port(), free_port()
        (self.folder / "haproxy-keys").write_text("\n".join(KEYS) + "\n")
        self.write_keys("keys.toml", KEYS)
        (self.folder / "page").write_bytes(b"x" * 1024)
        (self.folder / "large_page").write_bytes(b"x" * 100 * 1024)
        (self.folder / "body").write_text("memberID=190551803669111001")
        self.write_certificate("certificate.pem", "private_key.pem")
        both = [(self.folder / name).read_text() for name in ("certificate.pem", "private_key.pem")]
        (self.folder / "haproxy.pem").write_text("".join(both))

    def write_keys(self, file, keys):
        digests = [hashlib.sha256(key.encode()).hexdigest() for key in keys]
        (self.folder / file).write_text("".join(
            f'[[key]]\nid = "k{n}"\nguild = "{guild(n)}"\ndigest = "sha256:{digest}"\n'
            for n, digest in enumerate(digests)))

    def write_certificate(self, certificate, private_key):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", self.folder / private_key, "-out", self.folder / certificate, "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "basicConstraints=critical,CA:FALSE",
                        "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)

    def config(self, file, name=None, **words):
        """Writes a server's configuration under this name, and returns its path."""
        defaults = {"FOLDER": self.folder, "PORT": self.port, "ORIGIN": self.origin, "ADMIN": self.admin, "KEYS": "",
                    "TLS": "", "USER": pwd.getpwuid(os.getuid()).pw_name, "THREADS": 1, "KEY_FILE": "keys.toml",
                    "BACKEND": f'kind = "http"\nupstreams = ["http://127.0.0.1:{self.origin}"]', "TTL": "10m",
                    "CACHE_SIZE": "512MiB", "LOG": 'access = ""', "CLUSTER": "", "REDIS": "",
                    "PASS": '[pass]\npaths = ["/page", "/large_page"]\nkey = false'}
        path = self.folder / (name or file)
        path.write_text(Config((HERE / file).read_text()).substitute(defaults | words))
        return str(path)

    def command(self, peer, tls=False, close=False, misses=False, redis=None):
        """Writes the peer's configuration and returns how to start it; `redis`: the port of the one that limits are
        shared over."""
        if peer == "floor":
            return [self.options.examples + "/epoll_floor", f"127.0.0.1:{self.port}", *["--close"] * close,
                    *["--origin", f"127.0.0.1:{self.origin}"] * misses]
        if peer == "pingora":
            return [self.options.examples + "/bare_proxy", f"127.0.0.1:{self.port}", f"127.0.0.1:{self.origin}"]
        if peer in OURS:
            cluster = f'[cluster]\nredis = "redis://127.0.0.1:{redis}"' if redis else ""
            config = self.gateway_toml("gateway.toml", tls, CLUSTER=cluster)
            return [getattr(self.options, peer), "serve", "--config", config]
        if peer == "varnish":
            config = self.config("varnish.vcl", KEYS="|".join(KEYS))
            return ["varnishd", "-F", "-j", "none", "-n", f"{self.folder}/varnish", "-a", f"127.0.0.1:{self.port}",
                    "-f", config, "-s", "malloc,512m", "-p", "thread_pools=1"]
        if peer == "haproxy":
            bind = f"ssl crt {self.folder}/haproxy.pem alpn h2,http/1.1 ssl-min-ver TLSv1.3" if tls else ""
            return ["haproxy", "-db", "-f", self.config("haproxy.cfg", TLS=bind)]
        if peer == "nginx-lua":
            lua_keys = "\n".join(f'  ["{key}"] = "k{n}",' for n, key in enumerate(KEYS))
            self.config("gateway.lua", KEYS=lua_keys, REDIS=redis or "")
        # What an earlier measurement left would fill its cache.
        shutil.rmtree(self.folder / "nginx-cache", ignore_errors=True)
        keys = "\n".join(f'        "{key}" k{n};' for n, key in enumerate(KEYS))
        config = self.config(peer + ".conf", KEYS=keys, TLS="ssl http2" if tls else "")
        return ["nginx", "-e", "stderr", "-p", str(self.folder), "-c", config]

    def gateway_toml(self, name, tls=False, **words):
        pair = f'certificate = "{self.folder}/certificate.pem", private_key = "{self.folder}/private_key.pem"'
        return self.config("gateway.toml", name, TLS=f"tls = {{ {pair} }}" if tls else "", **words)

    @contextlib.contextmanager
    def running(self, name, command, port, cores):
        """A server, from when it accepts connections until the end of the block."""
        log = self.folder / (name + ".log")
        with open(log, "wb") as output:
            process = subprocess.Popen(["taskset", "-c", str(cores), *command], stdout=output, stderr=output)
        try:
            end = time.monotonic() + 20
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"{name} did not start: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield process.pid
        finally:
            pids = family(process.pid)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()

    def origin_requests(self):
        """How many requests the origin has had; asking is one more."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.origin}/count") as answer:
            return int(answer.read().split()[9])

    def ask(self, tls, key):
        if tls:
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            headers = FORM | ({"Authorization": key} if key else {})
            connection.request("POST", "/getPoints", "memberID=7", headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    @contextlib.contextmanager
    def serving(self, name, command, tls=False, points="1250", cores=None):
        """The processes of a server under test. It must answer a good key with these points, and refuse a wrong and a
        missing one; `None`: it reads no requests."""
        cores = self.options.server_core if cores is None else cores
        with self.running(name, command, self.port, cores) as pid:
            if points:
                good, wrong, missing = (self.ask(tls, key) for key in (KEYS[0], "a wrong key", None))
                if good != (200, points) or wrong[0] != 401 or missing[0] != 401:
                    sys.exit(f"{name} gives wrong answers: {good} {wrong} {missing}")
            yield family(pid)

    def wrk(self, pids, seconds, tls=False, keys=KEYS, cores=None, threads=1, connections=64, **load):
        """The load of load.lua, which says what else it can be told."""
        words = {"keys": " ".join(keys), "writes": 0, "close": 0, "first": 0, "count": 0, "random": 0} | load
        env = {"LOAD_" + name.upper(): str(word) for name, word in words.items()}
        url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "-s", str(HERE / "load.lua"), url]
        return self.load(pids, command, env, cores)

    def load(self, pids, command, env, cores=None):
        """Runs a load generator and counts the server's CPU time meanwhile."""
        asked, before = self.origin_requests(), cpu_times(pids)
        cores = self.options.load_core if cores is None else cores
        output = subprocess.run(["taskset", "-c", str(cores), *command], env=os.environ | env, capture_output=True,
                                text=True)
        cpu, asked = cpu_since(before), self.origin_requests() - asked - 1
        if line := re.search(r"^RESULT (.*)$", output.stdout, re.M):
            result = json.loads(line.group(1))
        elif m := re.search(r"finished in ([\d.]+)s.*?(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout",
                            output.stdout, re.S):
            _, done, *bad = (float(n) for n in m.groups())
            good = int(re.search(r"status codes: (\d+) 2xx", output.stdout).group(1))
            result = {"requests": good, "seconds": float(m.group(1)), "errors": int(done - good + sum(bad))}
        else:
            sys.exit(f"{command[0]} failed: {output.stdout}{output.stderr}")
        if result["errors"]:
            result["note"] = f"{result['errors']} requests failed"
        requests = max(1, result["requests"])
        rate = requests / result["seconds"]
        return result | {"figure": cpu / 1000 / requests, "rate": rate, "origin": asked / requests}


def median(rows, field="figure"):
    return statistics.median(row[field] for row in rows)


def spread(values, digits=2):
    values = sorted(values)
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}–{values[-1]:.{digits}f})"


def ratio(rows, name, other):
    return spread([mine["figure"] / max(theirs["figure"], 1e-9) for mine, theirs in zip(rows[name], rows[other])])


def print_notes(name, rows):
    for who, values in rows.items():
        if notes := [row["note"] for row in values if "note" in row]:
            print(f"\n{name}, {who}: " + ", ".join(notes))


def machine(options, servers):
    """What was measured, and where. `servers` are programs and the option with which each says its version."""
    cpu = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    print(f"{cpu.group(1) if cpu else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}; "
          f"{options.rounds} rounds of {options.seconds} s, {time.strftime('%Y-%m-%d')}.\n")
    for program, flag in ({options.guildgate: "--version"} | servers).items():
        if shutil.which(program):
            said = subprocess.run([program, flag], capture_output=True, text=True)
            print("- " + (said.stdout + said.stderr).splitlines()[0])
    print()


def missing_packages(needs):
    return [package for what, package in needs if not (shutil.which(what) or pathlib.Path(what).exists())]


def chosen(text, all_, what):
    names = text.split(",") if text else list(all_)
    if unknown := [name for name in names if name not in all_]:
        sys.exit(f"There is no {what} {', '.join(unknown)}; choose among {', '.join(all_)}.")
    return names


def parser(doc, works):
    """The options of both scripts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="", help="among " + ", ".join(works))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of load in each measurement")
    parser.add_argument("--warm-up", type=int, default=4, help="seconds of load before it")
    parser.add_argument("--guildgate", default=str(ROOT / "target/release/guildgate"), help="the binary to measure")
    parser.add_argument("--examples", default=str(ROOT / "target/release/examples"), help="the folder of the examples")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--json", help="a file for all figures")
    return parser


def check_needs(needed, files):
    """Whether the programs are installed (`needed` has Debian's packages of them), and the files built."""
    os.environ["PATH"] += ":/usr/sbin"
    if packages := missing_packages(needed.items()):
        sys.exit(f"These Debian packages are missing: {' '.join(packages)}. Run: scripts/setup peers")
    for file in filter(None, files):
        if not os.access(file, os.X_OK):
            sys.exit(f"{file} is missing. Build it, as the head of this script says, or say where it is.")


@contextlib.contextmanager
def started(kind, options):
    """A `Bench` of this kind with its origin, until the end of the block."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    # What this script itself does is taken from the load, not from the server.
    os.sched_setaffinity(0, {options.load_core})
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="guildgate-bench-", dir=in_memory) as folder:
        bench = kind(options, folder)
        origin = ["nginx", "-e", "stderr", "-p", folder, "-c", bench.config("origin.conf")]
        with bench.running("origin", origin, bench.origin, options.load_core):
            yield bench


def in_rounds(options, measure):
    """The rows of all rounds, by work and by name. `measure` takes a work and the number of the round, and measures
    whatever the work compares in turn: it yields names and rows."""
    results = {}
    for round_ in range(options.rounds):
        for work in options.works:
            for name, row in measure(work, round_):
                results.setdefault(work, {}).setdefault(name, []).append(row)
                print(f"round {round_ + 1}, {work}, {name}: {row}", file=sys.stderr)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))
    return results

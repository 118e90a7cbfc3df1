# bash completion of ropekit: the tool itself says what may follow (ropekit words [COMMAND]).
_ropekit() {
    local typed=${COMP_LINE:0:COMP_POINT} tool=${COMP_WORDS[0]} command=
    local word=${typed##* }
    ((COMP_CWORD > 1)) && command=${COMP_WORDS[1]}
    [[ $command == help ]] && command=
    # shellcheck disable=SC2086 # no command is no word
    mapfile -t COMPREPLY < <(compgen -W "$("$tool" words $command 2>/dev/null)" -- "$word")
    if [[ $word == --config=* || $word == --output=* ]]; then
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -P "${word%%=*}=" -- "${word#*=}")
        compopt -o filenames
    fi
    # readline's word begins behind "="
    [[ $word != *=* || $COMP_WORDBREAKS != *=* ]] || COMPREPLY=("${COMPREPLY[@]#*=}")
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -F _ropekit ropekit

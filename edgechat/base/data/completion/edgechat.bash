# Completion of edgechat for bash 4.4 and newer. Source it, or put it where bash-completion looks:
# ~/.local/share/bash-completion/completions/edgechat

_edgechat_completion() {
    # The line itself is asked for: bash's words are cut at the colon of a name such as mistral-7b:Q4_K_M.
    local line=${COMP_LINE:0:COMP_POINT} word option='' breaks='' cut='' character value
    word=${line##*[[:space:]]}
    [[ $word == --*=* ]] && option=${word%%=*}=
    # What bash replaces begins behind the last of these, unless somebody took them out.
    for character in : =; do
        [[ $COMP_WORDBREAKS == *"$character"* ]] && breaks+=$character
    done
    [[ -n $breaks ]] && cut=${word%"${word##*[$breaks]}"}
    COMPREPLY=()
    while IFS=$'\t' read -r value _; do
        [[ -n $value ]] || continue
        # The program gives back whole words, --option=value without its option.
        value=$option$value
        [[ $value == "$word"* ]] && value=${value#"$cut"}
        COMPREPLY+=("$value")
    done < <(
        _EDGECHAT_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=$line \
            "${1/#\~/$HOME}" 2>/dev/null
    )
}

complete -o default -F _edgechat_completion edgechat

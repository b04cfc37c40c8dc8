# Completion of edgechat for fish. Put it into ~/.config/fish/completions

function __edgechat_offered
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l option (string match -r -- '^--[^=]+=' $word)
    set -l found (env _EDGECHAT_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
        _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) \
        (string replace -r -- '^~' $HOME $words[1]) 2>/dev/null)
    if test -n "$found[1]"
        # The program leaves out the option of --option=value.
        printf "$option%s\n" $found
    else
        __fish_complete_path $word
    end
end

complete --command edgechat --no-files --arguments '(__edgechat_offered)'

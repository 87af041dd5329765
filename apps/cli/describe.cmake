# cmake -D PROGRAM=imago -D FOLDER=share -P describe.cmake: manual page and shell completions, as the program prints them

file(MAKE_DIRECTORY ${FOLDER})
function(save FILE)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${FOLDER}/${FILE} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
save(imago.1 man)
save(imago.bash completion bash)
save(imago.fish completion fish)
save(_imago completion zsh)

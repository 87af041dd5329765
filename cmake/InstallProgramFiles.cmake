# What belongs to the program beside the program: manual page, completions, the bundled model. Each where its reader looks
# for it, and none of them a condition: cross builds make no pages, and a checkout may lack the model.

set(about ${PROJECT_BINARY_DIR}/share)
install(FILES ${about}/imago.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${about}/imago.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME imago OPTIONAL)
install(FILES ${about}/imago.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d OPTIONAL)
# zsh reads site-functions below /usr/local; below /usr, Debian's reads vendor-completions. The prefix is chosen late.
install(CODE "
  if(EXISTS \"${about}/_imago\")
    set(folder site-functions)
    if(CMAKE_INSTALL_PREFIX MATCHES \"/usr$\")
      set(folder vendor-completions)
    endif()
    file(INSTALL \"${about}/_imago\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${folder}\")
  endif()")
install(FILES ${PROJECT_SOURCE_DIR}/models/imago-20m.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/imago OPTIONAL)
install(FILES ${PROJECT_SOURCE_DIR}/models/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/imago)

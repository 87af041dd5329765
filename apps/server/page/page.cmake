# imago_embed_page(TARGET): compiles dist/index.html into a target, as what server::page() returns.
# `npm run build` in this folder makes that file from src/; it is kept in the repository, so that building the program
# needs no npm.

function(imago_embed_page TARGET)
  set(html ${PROJECT_SOURCE_DIR}/apps/server/page/dist/index.html)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/page.cpp)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -D HTML=${html} -D SOURCE=${source} -P ${PROJECT_SOURCE_DIR}/apps/server/page/embed.cmake
    DEPENDS ${html} ${PROJECT_SOURCE_DIR}/apps/server/page/embed.cmake VERBATIM)
  target_sources(${TARGET} PRIVATE ${source})
endfunction()

# `cmake --build build/release --target docs` writes HTML; an undocumented public symbol is an error.
find_program(DOXYGEN doxygen)
mark_as_advanced(DOXYGEN)
if(DOXYGEN)
    configure_file(docs/Doxyfile.in Doxyfile @ONLY)
    add_custom_target(docs
        COMMAND ${DOXYGEN} ${CMAKE_CURRENT_BINARY_DIR}/Doxyfile
        COMMENT "Writing ${CMAKE_CURRENT_BINARY_DIR}/html" VERBATIM)
endif()

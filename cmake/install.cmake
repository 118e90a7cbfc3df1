include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ropekit)

install(TARGETS ropekit EXPORT ropekit-targets)
install(DIRECTORY include/ropekit TYPE INCLUDE)
install(DIRECTORY examples/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/ropekit)
install(FILES LICENSE README.md CHANGELOG.md TYPE DOC)
if(ROPEKIT_BUILD_TOOL)
    install(TARGETS ropekit_tool)
    install(FILES docs/ropekit.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES bench/completion/ropekit.bash RENAME ropekit
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES bench/completion/_ropekit
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()

install(EXPORT ropekit-targets NAMESPACE ropekit:: DESTINATION ${package_dir})
configure_package_config_file(cmake/ropekit-config.cmake.in ropekit-config.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ropekit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
    ${CMAKE_CURRENT_BINARY_DIR}/ropekit-config.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/ropekit-config-version.cmake
    DESTINATION ${package_dir})

# What a static libropekit needs at link time, and a shared one has linked already.
set(link_needs -lm -ldl -pthread)
if(ROPEKIT_OPENMP)
    list(TRANSFORM OpenMP_C_LIB_NAMES PREPEND -l OUTPUT_VARIABLE openmp_libs)
    list(APPEND link_needs ${openmp_libs})
endif()
list(JOIN link_needs " " link_needs)
set(pc_libs "")
set(pc_libs_private "")
set(pc_cflags "")
if(BUILD_SHARED_LIBS)
    set(pc_libs_private ${link_needs})
else()
    set(pc_libs "${link_needs} -Wl,-z,nodelete") # common/CMakeLists.txt says why
    set(pc_cflags -DROPE_STATIC)
endif()
# Relative, so that the tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
    BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE pc_prefix)
configure_file(cmake/ropekit.pc.in ropekit.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ropekit.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Debian's folder of the architecture in /usr/local as in /usr, for which GNUInstallDirs takes it: its
# linker, CMake and pkg-config look there in both, and a .deb of a tree that names no prefix is for /usr.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_INSTALL_PREFIX STREQUAL "/usr/local" AND CMAKE_LIBRARY_ARCHITECTURE
        AND EXISTS /etc/debian_version)
    set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "Folder of libraries")
endif()
include(GNUInstallDirs)

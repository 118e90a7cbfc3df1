# An error before project() would leave a cache and a folder. CMake writes CMakeFiles/cmake.check_cache
# last of all: here that is a full pipe, at which it waits until a process has removed them.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_BINARY_DIR)
    if(NOT EXISTS ${CMAKE_BINARY_DIR}/CMakeCache.txt)
        execute_process(WORKING_DIRECTORY ${CMAKE_BINARY_DIR} ERROR_QUIET COMMAND sh -c [[
            pipe=CMakeFiles/cmake.check_cache
            mkfifo $pipe && exec 3<>$pipe 4<$pipe || exit
            dd if=/dev/zero bs=4096 oflag=nonblock >&3
            {
                exec 3>&-
                while [ ! -e CMakeCache.txt ] && kill -0 $PPID; do sleep 0.01; done
                rm -rf CMakeCache.txt CMakeFiles
                cat <&4
            } >/dev/null 2>&1 &
        ]])
    endif()
    message(FATAL_ERROR
        "Configure ropekit outside its source, with `cmake --preset release` or `cmake -B build`.")
endif()

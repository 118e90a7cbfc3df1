# What every target of ours is compiled with; warnings for a top-level build only.
set(ropekit_compile_flags -ffp-contract=off)
if(PROJECT_IS_TOP_LEVEL)
    # Callers' threads may have small stacks.
    list(APPEND ropekit_compile_flags -Wall -Wextra -Wframe-larger-than=131072)
endif()
# Within a project that names neither a build type nor a level, kernels would not be optimised.
if(NOT PROJECT_IS_TOP_LEVEL AND NOT multi_config AND NOT CMAKE_BUILD_TYPE
        AND NOT CMAKE_C_FLAGS MATCHES "-O")
    list(APPEND ropekit_compile_flags -O3)
endif()
if(ROPEKIT_WERROR)
    list(APPEND ropekit_compile_flags -Werror)
endif()
set(ropekit_link_flags "")
if(ROPEKIT_SANITIZE)
    set(sanitize -fsanitize=${ROPEKIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    # Frames that clang allocates as it goes are aligned to 32 bytes, and vectors on them to 64.
    if(CMAKE_C_COMPILER_ID MATCHES Clang AND ROPEKIT_SANITIZE MATCHES address)
        list(APPEND sanitize "SHELL:-mllvm -asan-stack-dynamic-alloca=0")
    endif()
    list(APPEND ropekit_compile_flags ${sanitize})
    list(APPEND ropekit_link_flags -fsanitize=${ROPEKIT_SANITIZE})
endif()

# Language, flags and the include path "folder/file.h" of a target of ours.
function(ropekit_target target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON
        C_VISIBILITY_PRESET hidden)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_options(${target} PRIVATE ${ropekit_compile_flags})
    target_link_options(${target} PRIVATE ${ropekit_link_flags})
endfunction()

# Results are bitwise equal on every backend only if the compiler keeps IEEE semantics
# (docs/numerics.md). The linker flags count too: gcc links code that turns subnormals off.
set(fast_math_flags
    -ffast-math -Ofast -funsafe-math-optimizations -ffinite-math-only -fassociative-math
    -freciprocal-math -fno-signed-zeros -ffp-model=fast -ffp-contract=fast -ffp-contract=on
    -mdaz-ftz)

get_directory_property(directory_options COMPILE_OPTIONS)
get_directory_property(directory_link_options LINK_OPTIONS)
set(given_flags ${directory_options} ${directory_link_options})
set(flag_variables CMAKE_C_FLAGS CMAKE_SHARED_LINKER_FLAGS CMAKE_EXE_LINKER_FLAGS)
string(TOUPPER "${CMAKE_BUILD_TYPE};${CMAKE_CONFIGURATION_TYPES}" configurations)
foreach(configuration IN LISTS configurations)
    list(APPEND flag_variables CMAKE_C_FLAGS_${configuration})
endforeach()
foreach(variable IN LISTS flag_variables)
    separate_arguments(words NATIVE_COMMAND "${${variable}}")
    list(APPEND given_flags ${words})
endforeach()

foreach(flag IN LISTS fast_math_flags)
    if(flag IN_LIST given_flags)
        message(FATAL_ERROR
            "ropekit: the compiler flag ${flag} is refused: it changes results, and outputs must be "
            "bitwise equal on every backend. Remove it from CFLAGS, CMAKE_C_FLAGS and the linker flags.")
    endif()
endforeach()

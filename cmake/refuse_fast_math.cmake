# Results are bitwise equal on every backend only if the compiler keeps IEEE semantics
# (docs/numerics.md). The linker flags count too: gcc links code that turns subnormals off. What
# comes another way, such as a file of flags, common/math/portable.h refuses by what it defines.
set(fast_math_flags
    -ffast-math -Ofast -funsafe-math-optimizations -ffinite-math-only -fassociative-math
    -freciprocal-math -fno-signed-zeros -ffp-model=fast -ffp-contract=fast -ffp-contract=on
    -mdaz-ftz -fgpu-flush-denormals-to-zero -fcuda-flush-denormals-to-zero
    -use_fast_math --use_fast_math)

# Refuses what was given for a language that is enabled. A flag may stand in a list for the compiler
# behind nvcc, as in -Xcompiler=-Wall,-ffast-math, or in a generator expression.
function(ropekit_refuse_fast_math language)
    get_directory_property(directory_options COMPILE_OPTIONS)
    get_directory_property(directory_link_options LINK_OPTIONS)
    separate_arguments(given_flags NATIVE_COMMAND "${CMAKE_${language}_COMPILER_ARG1}")
    list(APPEND given_flags ${directory_options} ${directory_link_options})
    string(TOUPPER "${CMAKE_BUILD_TYPE};${CMAKE_CONFIGURATION_TYPES}" configurations)
    foreach(kind IN ITEMS ${language} SHARED_LINKER MODULE_LINKER EXE_LINKER)
        set(flags "${CMAKE_${kind}_FLAGS}")
        foreach(configuration IN LISTS configurations)
            string(APPEND flags " ${CMAKE_${kind}_FLAGS_${configuration}}")
        endforeach()
        separate_arguments(words NATIVE_COMMAND "${flags}")
        list(APPEND given_flags ${words})
    endforeach()
    foreach(flag IN LISTS fast_math_flags)
        if(given_flags MATCHES "(^|[;:=, ])${flag}($|[;>, ])")
            message(FATAL_ERROR
                "ropekit: the compiler flag ${flag} is refused: it changes results, and outputs must "
                "be bitwise equal on every backend. Remove it from ${language}FLAGS, "
                "CMAKE_${language}_FLAGS, the compiler's name and the linker flags.")
        endif()
    endforeach()
endfunction()
ropekit_refuse_fast_math(C)

#include "bench/measure/interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t pending;

static void note(int signal_number) {
    (void)signal_number;
    pending = 1;
}

void interrupt_catch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    action.sa_flags = (int)(SA_RESETHAND | SA_RESTART);
    sigaction(SIGINT, &action, NULL);
}

bool interrupted(void) {
    return pending != 0;
}

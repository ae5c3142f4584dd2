/* Stands in for netsh.exe under Wine, whose own does nothing: it passes its arguments on to a program
 * that listens on 127.0.0.1 at the port that the environment variable VIPKIT_NETSH names, and ends
 * with the exit status that it gets. internal/peer/windows has that program. */
#include <winsock2.h>
#include <windows.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *port = getenv("VIPKIT_NETSH");
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	unsigned char status;
	WSADATA data;
	SOCKET s;

	if (!port || WSAStartup(MAKEWORD(2, 2), &data))
		return 1;
	to.sin_port = htons((u_short)atoi(port));
	s = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	if (s == INVALID_SOCKET || connect(s, (struct sockaddr *)&to, sizeof to))
		return 1;
	for (int i = 1; i < argc; i++)
		if (send(s, argv[i], (int)strlen(argv[i]), 0) < 0 || send(s, "\n", 1, 0) < 0)
			return 1;
	if (shutdown(s, SD_SEND) || recv(s, (char *)&status, 1, 0) != 1)
		return 1;
	return status;
}

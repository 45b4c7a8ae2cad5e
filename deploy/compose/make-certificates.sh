# Makes the certificates of the three members of compose.yaml that are missing.
set -eu
cd /var/lib/quorate
[ -e ca.crt ] || quorate certs init compose --dir .
for member in 0 1 2; do
  # Clients that check names reach it by either name.
  [ -e "member-$member.crt" ] ||
    quorate certs issue member "$member" --dir . --host "member-$member" --host 127.0.0.1
done

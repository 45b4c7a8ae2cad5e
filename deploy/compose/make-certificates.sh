# Makes the certificates of compose.yaml that are missing: of its members, and of one client.
set -eu
cd /var/lib/quorate
[ -e ca.crt ] || quorate certs init compose --dir .
for member in 0 1 2; do
  # Clients that check names reach it by either name.
  [ -e "member-$member.crt" ] ||
    quorate certs issue member "$member" --dir . --host "member-$member" --host 127.0.0.1
done
# The user "default", who may do everything.
[ -e client-default.crt ] || quorate certs issue client default --dir .

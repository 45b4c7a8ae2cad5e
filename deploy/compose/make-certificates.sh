# Makes what is missing for compose.yaml: certificates of its members and of one client, and the
# token of the members' web ports.
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
[ -e web.token ] || (umask 077; python3 -c 'import secrets; print(secrets.token_hex())' > web.token)
